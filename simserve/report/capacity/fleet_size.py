"""A fleet size in words: how many replicas a load needs, what they cost, and what fewer and more would do."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.capacity.rate import attained, latency_cells, latency_heads, wanted
from simserve.report.formats import interval, number, plural, rate, share


def sentence(result: Mapping[str, Any]) -> str:
    """The answer; from what `simserve capacity --replicas --json` prints."""
    name, pool, answer = result["scenario"]["name"], result["pool"], result["answer"]
    offered = rate(result["points"][-1]["offered_per_s"])
    if answer is None:
        most = result["points"][-1]["replicas"]
        return (
            f"{name} needs more than {most:,} replicas of {pool}, where the search stopped, so that {wanted(result)}."
        )
    fleet, n = answer["fleet"], answer["replicas"]
    what = f"{plural(n, 'replica')} of {pool}, {plural(fleet['n_gpus'], 'GPU')} in all"
    price = f" at {fleet['usd_per_hour']:,.2f} dollars an hour" if fleet["usd_per_hour"] else ""
    point = next(each for each in result["points"] if each["replicas"] == n)
    sure = f"{share(point['attained_frac'])} do ({_certainty(result)})"
    fewer = [each for each in result["points"] if each["replicas"] == n - 1]
    less = f"; with one fewer {_share(fewer[0])}" if fewer else ""
    edge = "" if is_sure(result) else " Too close to tell for sure: one more, or longer runs."
    return f"{name} needs {what}{price}, for {offered} requests/s, so that {wanted(result)}: {sure}{less}.{edge}"


def table_rows(result: Mapping[str, Any]) -> list[Sequence[str]]:
    """A row a number of replicas, the fewest first, below the heads of the columns."""
    keys, heads = latency_heads(result)
    rows: list[Sequence[str]] = [("replicas", "attained", "interval", *heads)]
    for point in result["points"]:
        rows.append((f"{point['replicas']}", attained(point), _interval(point), *latency_cells(point, keys)))
    return rows


def is_sure(result: Mapping[str, Any]) -> bool:
    """The whole interval holds the goal."""
    low_frac = number(result["answer"]["low_frac"])
    return low_frac is not None and bool(low_frac >= result["goal_frac"])


def _certainty(result: Mapping[str, Any]) -> str:
    answer = result["answer"]
    within = " within the one run that every seed gives" if answer["n_seeds"] == 1 else ""
    if number(answer["low_frac"]) is None:
        return f"no interval{within}"
    return f"{result['confidence'] * 100:.0f}% interval {_interval(answer)}{within}"


def _share(point: Mapping[str, Any]) -> str:
    return "the queue only grows" if point["saturated"] else f"{share(point['attained_frac'])} would"


def _interval(result: Mapping[str, Any]) -> str:
    return interval(result["low_frac"], result["high_frac"])
