"""A capacity in words: the highest load that holds, what it comes to, and what was tried on the way."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simserve.report.formats import SHORT, count, goal, number, plural, rate, seconds, share, slo_terms

ASKED = ("ttft_s", "tpot_s")
"""Latencies in the table whatever the SLO is about."""


def sentence(result: Mapping[str, Any]) -> str:
    """The answer; from what `simserve capacity --json` prints."""
    answer, name = result["answer"], result["scenario"]["name"]
    if answer is None:
        return none(result, f"rate of {name}", f"{rate(result['stopped_at']['offered_per_s'])} requests/s")
    offered = answer["offered_per_s"]
    sure = between(offered, rate)
    return (
        f"{level(result)} goodput of {name}: {rate(offered['value'])} requests/s on {gpus(answer)} "
        f"({certainty(answer, sure)}), the highest rate at which {wanted(result)}; {per_each(answer)}. "
        f"{fails_first(answer)}{imprecise(result)}"
    )


def level(result: Mapping[str, Any]) -> str:
    """`p99`, `p99.9`: what the goal is called."""
    return f"p{result['goal_frac'] * 100:.4g}"


def wanted(result: Mapping[str, Any]) -> str:
    """`99% of requests have TTFT ≤ 500 ms`."""
    terms = "what the SLO of their class asks" if result["slo_classes"] else slo_terms(result["slo"])
    return f"{result['goal_frac'] * 100:.4g}% of requests have {terms}"


def gpus(answer: Mapping[str, Any]) -> str:
    """`2 GPUs`."""
    return plural(answer["fleet"]["n_gpus"], "GPU")


def between(ends: Mapping[str, Any], text: Callable[[float], str]) -> str:
    """`13.2 to 13.6`, or that it is not known."""
    low, high = number(ends["low"]), number(ends["high"])
    return "not known" if low is None or high is None else f"{text(low)} to {text(high)}"


def certainty(answer: Mapping[str, Any], ends: str) -> str:
    """`95% interval 13.2 to 13.6, 8 seeds`; without an interval where every seed gives the same run."""
    if answer["n_seeds"] == 1:
        return "one run, as every seed gives the same; no interval"
    return f"{answer['confidence'] * 100:.0f}% interval {ends}, {answer['n_seeds']} seeds"


def per_each(answer: Mapping[str, Any]) -> str:
    """Requests for each GPU, dollar and kWh."""
    text = f"{rate(answer['per_gpu_s']['value'])} a second and GPU"
    if answer["per_usd"] is not None:
        text += f", {rate(answer['per_usd']['value'])} requests a dollar"
    if answer["per_kwh"] is not None:
        text += f", {rate(answer['per_kwh']['value'])} a kWh at the cards' full power"
    return text


def fails_first(answer: Mapping[str, Any]) -> str:
    """What is wrong a little beyond."""
    what = answer["fails_first"]
    return "Beyond it the queue only grows." if what == "queue" else f"{SHORT[what]} fails first."


def imprecise(result: Mapping[str, Any]) -> str:
    """What stands in the way of leaning on the answer; nothing where nothing does."""
    answer, text = result["answer"], ""
    at = answer.get("offered_per_s") or answer["concurrency"]
    has_sampling_noise = answer["n_seeds"] > 1
    if has_sampling_noise and number(at["low"]) is None:
        text += " How far chance may have moved it is not known: too few seeds tell where queues begin to grow."
    elif has_sampling_noise and not answer["is_precise"]:
        requested = f"{answer['precision_frac'] * 100:.3g}%"
        text += f" The interval is wider than the {requested} asked for, with as many seeds as are tried: "
        text += "make the runs longer."
    if not answer["n_enough"]:
        least = 10 / (1 - result["goal_frac"])
        text += (
            f" {level(result)} of {plural(answer['n_requests'], 'request')} is a guess; it wants {count(least)}: make "
            "the runs longer."
        )
    return text


def none(result: Mapping[str, Any], what: str, at: str) -> str:
    """Why there is no answer: every load holds, or none does."""
    last = result["stopped_at"]
    if result["state"] == "every load":
        return f"Every {what} up to {at}, where the search stopped, holds: {wanted(result)}."
    key, frac = min(last["by_slo"].items(), key=lambda item: item[1])
    limit = f"≤ {goal(result['slo'][key])}" if key in result["slo"] and not result["slo_classes"] else "of their class"
    why = f"there {share(frac)} of requests meet {SHORT[key]} {limit}, its p99 being {seconds(last[key]['p99'])}"
    if last["saturated"]:
        why = "even there the queue only grows"
    return f"No {what} holds, down to {at}, where the search stopped ({why}): {wanted(result)}."


def table_rows(result: Mapping[str, Any]) -> list[Sequence[str]]:
    """A row a load, the lowest first, below the heads of the columns."""
    keys, heads = latency_heads(result)
    points = sorted(result["points"], key=lambda point: float(point["offered_per_s"]))
    return [("requests/s", "runs", "attained", *heads), *(_row(point, keys) for point in points)]


def latency_heads(result: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Latencies that a table of what was tried shows, and what their columns are called."""
    given = {*result["slo"], *(key for targets in result["slo_classes"].values() for key in targets), *ASKED}
    keys = [key for key in SHORT if key in result["points"][0] and key in given]
    return keys, [f"{level} {SHORT[key]}" for key in keys for level in ("p50", "p99")]


def latency_cells(point: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """What stands in these columns."""
    return [seconds(point[key][level]) for key in keys for level in ("p50", "p99")]


def attained(point: Mapping[str, Any]) -> str:
    """The share that met every SLO, where that tells anything."""
    return "saturated" if point["saturated"] else share(point["attained_frac"])


def _row(point: Mapping[str, Any], keys: Sequence[str]) -> Sequence[str]:
    return (rate(point["offered_per_s"]), str(point["n_runs"]), attained(point), *latency_cells(point, keys))
