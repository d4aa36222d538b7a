"""Capacity words: the highest load that holds, what it comes to, and what was tried on the way."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simserve.report.formats import (
    NONE,
    SHORT,
    count,
    goal,
    interval,
    listed,
    number,
    plural,
    rate,
    seconds,
    share,
    slo_terms,
)
from simserve.report.nominal_load import drawn

OWN = {"met": "meets the SLO", "edge": "is on the edge of the SLO", "missed": "misses the SLO"}
HOLDS = {"met": "holds", "edge": "may hold", "missed": "may hold"}
"""What is said of a load, by the decision about it."""

ASKED = ("ttft_s", "tpot_s")
"""Latencies in the table whatever the SLO is about."""


def sentence(result: Mapping[str, Any]) -> str:
    """Return the answer, from what `simserve capacity --json` prints: rate, interval, what fails, what it costs."""
    answer, name = result["answer"], result["scenario"]["name"]
    if answer is None:
        return none(result, f"rate of {name}", f"{rate(result['stopped_at']['offered_per_s'])} req/s")
    offered = answer["offered_per_s"]
    sure = certainty(answer, between(offered, rate))
    parts = [
        f"{level(result)} goodput of {name}: {rate(offered['value'])} req/s on {gpus(answer)} ({sure}).",
        f"It is the highest {_nominal(result)}rate at which {wanted(result)}.",
        fails_first(answer),
        own_load(result),
        f"The answer comes to {per_each(answer)}.",
        drawn(result.get("load"), answer["n_seeds"]),
        imprecise(result),
    ]
    return " ".join(part for part in parts if part)


def _nominal(result: Mapping[str, Any]) -> str:
    load = result.get("load")
    return "nominal " if load and load["nominal_per_s"] else ""


def own_load(result: Mapping[str, Any]) -> str:
    """Return whether the scenario meets its SLO at its own load; nothing where that was not run."""
    own = result.get("own_load")
    if own is None:
        return ""
    at = f"The scenario's own load, {rate(own['offered_per_s'])} req/s, {OWN[own['decision']]}"
    if own["saturated"]:
        return f"{at}: the queue only grows."
    ends = interval(own["low_frac"], own["high_frac"])
    sure = "" if ends == NONE else f" (95% CI {ends}, {plural(own['n_runs'], 'seed')})"
    return f"{at}: {share(own['attained_frac'])} of requests attain it{sure}."


def level(result: Mapping[str, Any]) -> str:
    """Return `p99`, `p99.9`: what the goal is called."""
    return f"p{result['goal_frac'] * 100:.4g}"


def wanted(result: Mapping[str, Any]) -> str:
    """Return `99% of requests have TTFT ≤ 500 ms`."""
    terms = "what the SLO of their class asks" if result["slo_classes"] else slo_terms(result["slo"])
    return f"{result['goal_frac'] * 100:.4g}% of requests have {terms}"


def gpus(answer: Mapping[str, Any]) -> str:
    """Return `2 GPUs`."""
    return plural(answer["fleet"]["n_gpus"], "GPU")


def between(ends: Mapping[str, Any], text: Callable[[float], str]) -> str:
    """Return `13.2–13.6`, or that it is not known."""
    low, high = number(ends["low"]), number(ends["high"])
    return "not known" if low is None or high is None else f"{text(low)}–{text(high)}"


def certainty(answer: Mapping[str, Any], ends: str) -> str:
    """Return `95% CI 13.2–13.6, 8 seeds`; without an interval where every seed gives the same run."""
    if answer["n_seeds"] == 1:
        return "one run, as every seed gives the same; no interval"
    return f"{answer['confidence'] * 100:.0f}% CI {ends}, {answer['n_seeds']} seeds"


def per_each(answer: Mapping[str, Any]) -> str:
    """Return requests for each GPU, dollar and kWh."""
    text = [f"{rate(answer['per_gpu_s']['value'])} req/s per GPU"]
    if answer["per_usd"] is not None:
        text.append(f"{rate(answer['per_usd']['value'])} requests per dollar")
    if answer["per_kwh"] is not None:
        text.append(f"{rate(answer['per_kwh']['value'])} per kWh at the cards' full power")
    return listed(text)


def fails_first(answer: Mapping[str, Any]) -> str:
    """Return what is wrong a little beyond."""
    what = answer["fails_first"]
    return "Beyond it the queue only grows." if what == "queue" else f"Beyond it {SHORT[what]} fails first."


def imprecise(result: Mapping[str, Any]) -> str:
    """Return what stands in the way of relying on the answer; nothing where nothing does."""
    answer, sentences = result["answer"], []
    at = answer.get("offered_per_s") or answer["concurrency"]
    if answer["n_seeds"] > 1 and number(at["low"]) is None:
        sentences.append("Its interval is unknown: queues begin to grow with too few seeds.")
    elif answer["n_seeds"] > 1 and not answer["is_precise"]:
        requested = f"{answer['precision_frac'] * 100:.3g}%"
        sentences.append(
            f"The interval is wider than the {requested} requested, even with the most seeds: lengthen the runs."
        )
    if not answer["n_enough"]:
        guess = f"{level(result)} of {plural(answer['n_requests'], 'request')} is a guess; it takes"
        sentences.append(f"{guess} {count(10 / (1 - result['goal_frac']))}: lengthen the runs.")
    return " ".join(sentences)


def none(result: Mapping[str, Any], what: str, at: str) -> str:
    """Return why there is no answer: every load holds, or none does."""
    last = result["stopped_at"]
    if result["state"] == "every load":
        return f"Every {what} up to {at}, where the search stopped, {HOLDS[last['decision']]}: {wanted(result)}."
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
    return [("req/s", "runs", "attained", "95% CI", *heads), *(_row(point, keys) for point in points)]


def latency_heads(result: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Latencies that a table of what was tried shows, and what their columns are called."""
    given = {*result["slo"], *(key for targets in result["slo_classes"].values() for key in targets), *ASKED}
    keys = [key for key in SHORT if key in result["points"][0] and key in given]
    return keys, [f"{level} {SHORT[key]}" for key in keys for level in ("p50", "p99")]


def latency_cells(point: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """What stands in these columns."""
    return [seconds(point[key][level]) for key in keys for level in ("p50", "p99")]


def attained(point: Mapping[str, Any]) -> Sequence[str]:
    """Return the share that met every SLO, where that says anything, and its interval."""
    if point["saturated"]:
        return "saturated", NONE
    return share(point["attained_frac"]), interval(point["low_frac"], point["high_frac"])


def _row(point: Mapping[str, Any], keys: Sequence[str]) -> Sequence[str]:
    return (rate(point["offered_per_s"]), str(point["n_runs"]), *attained(point), *latency_cells(point, keys))
