"""Fleet size text: the replicas that a load needs, their price, and the table of other numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.capacity.rate import attained, latency_cells, latency_heads, wanted
from simserve.report.formats import NONE, interval, number, plural, rate, share
from simserve.report.nominal_load import DECISIONS, drawn


def sentence(result: Mapping[str, Any]) -> str:
    """Return the answer, from what `simserve capacity --replicas --json` prints."""
    name, pool, answer = result["scenario"]["name"], result["pool"], result["answer"]
    offered = rate(result["points"][-1]["offered_per_s"])
    if answer is None:
        most = result["points"][-1]["replicas"]
        head = (
            f"{name} needs more than {most:,} replicas of {pool}, where the search stopped, so that {wanted(result)}."
        )
        return " ".join(part for part in (head, _tied(result)) if part)
    fleet, n = answer["fleet"], answer["replicas"]
    size = f"{plural(n, 'replica')} of {pool}, {plural(fleet['n_gpus'], 'GPU')} in all"
    price = f" at {fleet['usd_per_hour']:,.2f} dollars an hour" if fleet["usd_per_hour"] else ""
    fewer = [
        each for each in result["points"] if each["replicas"] == n - 1 and each.get("decision", "missed") == "missed"
    ]
    load = result.get("load")
    nominal = "the nominal " if load and load["nominal_per_s"] else ""
    parts = [
        f"{name} needs {size}{price}, for {nominal}{offered} req/s, so that {wanted(result)}.",
        f"SLO attainment: {share(_point(result, answer)['attained_frac'])} ({_certainty(result)}).",
        f"One replica fewer misses the SLO: {_share(fewer[0])}." if fewer else "",
        _tied(result),
        drawn(load, answer["n_seeds"]),
    ]
    return " ".join(part for part in parts if part)


def _point(result: Mapping[str, Any], answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the number of replicas of the answer, with its runs."""
    return next(each for each in result["points"] if each["replicas"] == answer["replicas"])


def _tied(result: Mapping[str, Any]) -> str:
    """Return the fewest replicas on the edge; nothing where there are none."""
    tied = result.get("tied")
    if not tied:
        return ""
    met = f"{share(tied['attained_frac'])}, 95% CI {_interval(tied)}, {plural(tied['n_seeds'], 'seed')}"
    fewer = plural(tied["replicas"], "replica")
    return f"Statistically tied with the goal: {fewer} ({met}). Rerun with longer runs to decide."


def table_rows(result: Mapping[str, Any]) -> list[Sequence[str]]:
    """Return the column heads, then one row per number of replicas, the fewest first."""
    keys, heads = latency_heads(result)
    rows: list[Sequence[str]] = [("replicas", "runs", "attained", "95% CI", "SLO", *heads)]
    for point in result["points"]:
        cells = (
            f"{point['replicas']}",
            f"{point['n_runs']}",
            *attained(point),
            DECISIONS.get(point.get("decision"), NONE),
        )
        rows.append((*cells, *latency_cells(point, keys)))
    return rows


def _certainty(result: Mapping[str, Any]) -> str:
    answer = result["answer"]
    within = " within one run, which every seed repeats" if answer["n_seeds"] == 1 else ""
    if number(answer["low_frac"]) is None:
        return f"no interval{within}"
    seeds = "" if within else f", {answer['n_seeds']} seeds"
    return f"{result['confidence'] * 100:.0f}% CI {_interval(answer)}{within}{seeds}"


def _share(point: Mapping[str, Any]) -> str:
    return "the queue only grows" if point["saturated"] else f"{share(point['attained_frac'])} attain it"


def _interval(result: Mapping[str, Any]) -> str:
    return interval(result["low_frac"], result["high_frac"])
