"""Capacity text: the highest rate, its efficiency, and the table of loads."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simserve.metrics.decision import SURE_FRAC, probability
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
"""Verb for a load, by its decision."""

LEAST_SHOWN = 0.005
"""Probability below which the answer says nothing about capacity."""

SHOWN = ("ttft_s", "tpot_s")
"""Latencies that the table always shows."""


def sentence(result: Mapping[str, Any]) -> str:
    """Return the answer, from what `simserve capacity --json` prints: rate, interval, what fails, what it costs."""
    answer, name = result["answer"], result["scenario"]["name"]
    if answer is None:
        return none(result, f"rate of {name}", f"{rate(result['stopped_at']['offered_per_s'])} req/s")
    offered = answer["offered_per_s"]
    ci = certainty(answer, between(offered, rate))
    parts = [
        f"{level(result)} goodput of {name}: {rate(offered['value'])} req/s on {gpus(answer)} ({ci}).",
        f"It is the highest {_nominal(result)}rate at which {wanted(result)}.",
        fails_first(answer),
        beyond(answer),
        own_load(result),
        f"Efficiency: {per_each(answer)}.",
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
    beyond_frac = number(own.get("probability_beyond_capacity")) or 0.0
    if beyond_frac > 1 - SURE_FRAC:
        at += f" (beyond capacity with a probability of {probability(beyond_frac)})"
    ends = interval(own["low_frac"], own["high_frac"])
    ci = "" if ends == NONE else f" (95% CI {ends}, {plural(own['n_runs'], 'seed')})"
    return f"{at}: {share(own['attained_frac'])} of requests attain it{ci}."


def level(result: Mapping[str, Any]) -> str:
    """Return the name of the goal: `p99`, `p99.9`."""
    return f"p{result['goal_frac'] * 100:.4g}"


def wanted(result: Mapping[str, Any]) -> str:
    """Return `99% of requests have TTFT ≤ 500 ms`."""
    terms = "latencies within the SLO of their class" if result["slo_classes"] else slo_terms(result["slo"])
    return f"{result['goal_frac'] * 100:.4g}% of requests have {terms}"


def gpus(answer: Mapping[str, Any]) -> str:
    """Return `2 GPUs`."""
    return plural(answer["fleet"]["n_gpus"], "GPU")


def between(ends: Mapping[str, Any], format_number: Callable[[float], str]) -> str:
    """Return `13.2–13.6`, or `not known`."""
    low, high = number(ends["low"]), number(ends["high"])
    return "not known" if low is None or high is None else f"{format_number(low)}–{format_number(high)}"


def certainty(answer: Mapping[str, Any], ends: str) -> str:
    """Return `95% CI 13.2–13.6, 8 seeds`; without an interval where every seed gives the same run."""
    if answer["n_seeds"] == 1:
        return "one run, as every seed gives the same; no interval"
    return f"{answer['confidence'] * 100:.0f}% CI {ends}, {answer['n_seeds']} seeds"


def per_each(answer: Mapping[str, Any]) -> str:
    """Return requests per GPU, dollar and kWh."""
    terms = [f"{rate(answer['per_gpu_s']['value'])} req/s per GPU"]
    if answer["per_usd"] is not None:
        terms.append(f"{rate(answer['per_usd']['value'])} requests per dollar")
    if answer["per_kwh"] is not None:
        terms.append(f"{rate(answer['per_kwh']['value'])} per kWh at full GPU power")
    return listed(terms)


def fails_first(answer: Mapping[str, Any]) -> str:
    """Return what fails beyond the answer."""
    key = answer["fails_first"]
    return "Beyond it the queue only grows." if key == "queue" else f"Beyond it {SHORT[key]} fails first."


def beyond(answer: Mapping[str, Any]) -> str:
    """Return how likely the answer is beyond capacity; nothing where that is unknown or hardly possible."""
    near, chance = answer.get("near_capacity"), number(answer.get("probability_beyond_capacity"))
    if not near or chance is None or chance < LEAST_SHOWN:
        return ""
    ends = f"{near['confidence']:.0%} prediction interval {rate(near['low_per_s'])}–{rate(near['high_per_s'])}"
    return (
        f"Allowing for cost-model error, the capacity is {rate(near['capacity_per_s'])} req/s ({ends}), and the answer "
        f"is beyond it with a probability of {probability(chance)}."
    )


def imprecise(result: Mapping[str, Any]) -> str:
    """Return why the answer is imprecise; nothing where it is not."""
    answer, sentences = result["answer"], []
    at = answer.get("offered_per_s") or answer["concurrency"]
    if answer["n_seeds"] > 1 and number(at["low"]) is None:
        sentences.append("Its interval is unknown: queues begin to grow with too few seeds.")
    elif answer["n_seeds"] > 1 and not answer["is_precise"]:
        precision = f"±{answer['precision_frac'] * 100:.3g}%"
        sentences.append(f"The interval is wider than {precision} with {answer['n_seeds']} seeds: lengthen the runs.")
    if not answer["n_enough"]:
        guess = f"{level(result)} of {plural(answer['n_requests'], 'request')} is a guess; it takes"
        sentences.append(f"{guess} {count(10 / (1 - result['goal_frac']))}: lengthen the runs.")
    return " ".join(sentences)


def none(result: Mapping[str, Any], load: str, at: str) -> str:
    """Return why there is no answer: every load holds, or none does."""
    last = result["stopped_at"]
    if result["state"] == "every load":
        return f"Every {load} up to {at}, where the search stopped, {HOLDS[last['decision']]}: {wanted(result)}."
    key, frac = min(last["by_slo"].items(), key=lambda item: item[1])
    limit = f"≤ {goal(result['slo'][key])}" if key in result["slo"] and not result["slo_classes"] else "for their class"
    why = f"there {share(frac)} of requests meet {SHORT[key]} {limit}, p99 is {seconds(last[key]['p99'])}"
    if last["saturated"]:
        why = "even there the queue only grows"
    return f"No {load} holds, down to {at}, where the search stopped ({why}): {wanted(result)}."


def table_rows(result: Mapping[str, Any]) -> list[Sequence[str]]:
    """Return the column heads, then one row per load, the lowest first."""
    keys, heads = latency_heads(result)
    points = sorted(result["points"], key=lambda point: float(point["offered_per_s"]))
    return [("req/s", "runs", "attained", "95% CI", *heads), *(_row(point, keys) for point in points)]


def latency_heads(result: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the latencies of a table of loads, and their column heads."""
    given = {*result["slo"], *(key for targets in result["slo_classes"].values() for key in targets), *SHOWN}
    keys = [key for key in SHORT if key in result["points"][0] and key in given]
    return keys, [f"{level} {SHORT[key]}" for key in keys for level in ("p50", "p99")]


def latency_cells(point: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """Return the cells of these columns."""
    return [seconds(point[key][level]) for key in keys for level in ("p50", "p99")]


def attained(point: Mapping[str, Any]) -> Sequence[str]:
    """Return the share that met every SLO, and its interval; `saturated` where the queue only grew."""
    if point["saturated"]:
        return "saturated", NONE
    return share(point["attained_frac"]), interval(point["low_frac"], point["high_frac"])


def _row(point: Mapping[str, Any], keys: Sequence[str]) -> Sequence[str]:
    return (rate(point["offered_per_s"]), str(point["n_runs"]), *attained(point), *latency_cells(point, keys))
