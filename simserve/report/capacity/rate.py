"""Capacity text: the highest rate or number of clients, its efficiency, and the table of loads; the frame of pages."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simserve.metrics.answer import BEYOND_FRAC
from simserve.metrics.goal import probability
from simserve.report.capacity.load_curve import limited
from simserve.report.cautions import capacity_warnings
from simserve.report.charts import Figure
from simserve.report.document import Headline, page
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
from simserve.report.sections import prose, tile

Facts = Mapping[str, Any]
Columns = dict[str, Callable[[Facts], str]]
"""Titles of columns, and what stands there of a load."""

OWN = {"met": "meets the SLO", "edge": "is on the edge of the SLO", "missed": "misses the SLO"}
HOLDS = {"met": "holds", "edge": "may hold", "missed": "may hold"}
"""Verb for a load, by its decision."""

LEAST_SHOWN = 0.005
"""Probability below which the answer says nothing about capacity."""

SHOWN = ("ttft_s", "tpot_s")
"""Latencies that the table always shows."""


def sentence(result: Facts) -> str:
    """Return the answer, from what `simserve capacity --json` prints: the load, its interval, what fails, its price."""
    answer, name = result["answer"], result["scenario"]["name"]
    is_rate = result["asked"] == "rate"
    if answer is None and is_rate:
        return _none(result, f"rate of {name}", f"{rate(result['stopped_at']['offered_per_s'])} req/s")
    if answer is None:
        return _none(result, f"concurrency of {name}", count(result["stopped_at"]["scale"]))
    return " ".join(filter(None, _of_rate(result, name) if is_rate else _of_clients(result, name)))


def _of_rate(result: Facts, name: str) -> list[str]:
    answer, load = result["answer"], result.get("load")
    offered = answer["offered_per_s"]
    ci = certainty(answer, _between(offered, rate))
    nominal = "nominal " if load and load["nominal_per_s"] else ""
    return [
        f"{level(result)} goodput of {name}: {rate(offered['value'])} req/s on {gpus(answer)} ({ci}).",
        f"It is the highest {nominal}rate at which {wanted(result)}.",
        fails_first(answer),
        _beyond(answer),
        own_load(result),
        f"Efficiency: {per_each(answer)}.",
        drawn(load, answer["n_seeds"]),
        _imprecise(result),
    ]


def _of_clients(result: Facts, name: str) -> list[str]:
    answer = result["answer"]
    n = answer["concurrency"]
    ci = certainty(answer, _between(n, count))
    few_turns = "Each client sends fewer than ten requests, so the burst at the start dominates"
    return [
        f"{name} sustains {plural(n['value'], 'client')} at once on {gpus(answer)} ({ci}).",
        f"It is the highest concurrency at which {wanted(result)}; {answer['clients_per_gpu']:.4g} per GPU.",
        fails_first(answer),
        f"Throughput: {rate(answer['requests_per_s'])} req/s, {rate(answer['output_tokens_per_s'])} output tokens/s.",
        f"Efficiency: {per_each(answer)}.",
        _imprecise(result),
        "" if answer["enough_turns"] else f"{few_turns}: raise workload.n_requests.",
    ]


def own_load(result: Facts) -> str:
    """Return whether the scenario meets its SLO at its own load; nothing where that was not run."""
    own = result.get("own_load")
    if own is None:
        return ""
    at = f"The scenario's own load, {rate(own['offered_per_s'])} req/s, {OWN[own['decision']]}"
    if own["saturated"]:
        return f"{at}: the queue only grows."
    beyond_frac = number(own.get("probability_beyond_capacity")) or 0.0
    if beyond_frac > 1 - BEYOND_FRAC:
        at += f" (beyond capacity with a probability of {probability(beyond_frac)})"
    ends = interval(own["low_frac"], own["high_frac"])
    ci = "" if ends == NONE else f" (95% CI {ends}, {plural(own['n_runs'], 'seed')})"
    return f"{at}: {share(own['attained_frac'])} of requests attain it{ci}."


def level(result: Facts) -> str:
    """Return the name of the goal: `p99`, `p99.9`."""
    return f"p{result['goal_frac'] * 100:.4g}"


def wanted(result: Facts) -> str:
    """Return `99% of requests have TTFT ≤ 500 ms`."""
    terms = "latencies within the SLO of their class" if result["slo_classes"] else slo_terms(result["slo"])
    return f"{result['goal_frac'] * 100:.4g}% of requests have {terms}"


def gpus(answer: Facts) -> str:
    """Return `2 GPUs`."""
    return plural(answer["fleet"]["n_gpus"], "GPU")


def _between(ends: Facts, format_number: Callable[[float], str]) -> str:
    """Return `13.2–13.6`, or `not known`."""
    low, high = number(ends["low"]), number(ends["high"])
    return "not known" if low is None or high is None else f"{format_number(low)}–{format_number(high)}"


def certainty(answer: Facts, ends: str) -> str:
    """Return `95% CI 13.2–13.6, 8 seeds`; without an interval where every seed gives the same run."""
    if answer["n_seeds"] == 1:
        return "one run, as every seed gives the same; no interval"
    return f"{answer['confidence'] * 100:.0f}% CI {ends}, {answer['n_seeds']} seeds"


def per_each(answer: Facts) -> str:
    """Return requests per GPU, dollar and kWh."""
    terms = [f"{rate(answer['per_gpu_s']['value'])} req/s per GPU"]
    if answer["per_usd"] is not None:
        terms.append(f"{rate(answer['per_usd']['value'])} requests per dollar")
    if answer["per_kwh"] is not None:
        terms.append(f"{rate(answer['per_kwh']['value'])} per kWh at full GPU power")
    return listed(terms)


def fails_first(answer: Facts) -> str:
    """Return what fails beyond the answer."""
    key = answer["fails_first"]
    return "Beyond it the queue only grows." if key == "queue" else f"Beyond it {SHORT[key]} fails first."


def _beyond(answer: Facts) -> str:
    """Return how likely the answer is beyond capacity; nothing where that is unknown or hardly possible."""
    near, chance = answer.get("near_capacity"), number(answer.get("probability_beyond_capacity"))
    if not near or chance is None or chance < LEAST_SHOWN:
        return ""
    ends = f"{near['confidence']:.0%} prediction interval {rate(near['low_per_s'])}–{rate(near['high_per_s'])}"
    return (
        f"Allowing for cost-model error, the capacity is {rate(near['capacity_per_s'])} req/s ({ends}), and the answer "
        f"is beyond it with a probability of {probability(chance)}."
    )


def _imprecise(result: Facts) -> str:
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


def _none(result: Facts, load: str, at: str) -> str:
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


LOAD_COLUMNS: Columns = {
    "runs": lambda point: str(point["n_runs"]),
    "attained": lambda point: "saturated" if point["saturated"] else share(point["attained_frac"]),
    "95% CI": lambda point: NONE if point["saturated"] else interval(point["low_frac"], point["high_frac"]),
}
"""What every table says of a load: the share that met every SLO, with its interval."""


def table_rows(result: Facts) -> list[Sequence[str]]:
    """Return the column heads, then one row per load, the lowest first."""
    if result["asked"] == "concurrency":
        clients: Columns = {"clients": lambda point: count(point["concurrency"])}
        return load_table(result, clients | LOAD_COLUMNS | {"req/s": lambda point: rate(point["requests_per_s"])})
    points = sorted(result["points"], key=lambda point: float(point["offered_per_s"]))
    offered: Columns = {"req/s": lambda point: rate(point["offered_per_s"])}
    return load_table({**result, "points": points}, offered | LOAD_COLUMNS)


def load_table(result: Facts, columns: Columns) -> list[Sequence[str]]:
    """Return the column heads, then one row per load: these columns, then TTFT, TPOT and latencies with an SLO."""
    given = {*limited(result), *SHOWN}
    keys = [key for key in SHORT if key in result["points"][0] and key in given]
    figures = [(key, level) for key in keys for level in ("p50", "p99")]
    rows: list[Sequence[str]] = [(*columns, *(f"{level} {SHORT[key]}" for key, level in figures))]
    for point in result["points"]:
        rows.append([cell(point) for cell in columns.values()] + [seconds(point[key][level]) for key, level in figures])
    return rows


def capitalized(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return a table as pages have it: the title of its first column with a capital."""
    head, *others = rows
    return [(head[0].capitalize(), *head[1:]), *others]


def tail_tiles(point: Facts) -> list[str]:
    """Return a tile per latency at a load: p99, and p50 below it."""
    return [
        tile(f"{SHORT[key]} p99 at this load", seconds(point[key]["p99"]), [prose(f"p50 {seconds(point[key]['p50'])}")])
        for key in SHOWN
    ]


def capacity_page(result: Facts, headline: Headline, parts: Sequence[str], figures: Mapping[str, Figure]) -> str:
    """Return the page of an answer as HTML, with its warnings and what it comes from."""
    n_seeds, scenario = (result["answer"] or {}).get("n_seeds"), result["scenario"]
    seeds = None if n_seeds is None else f"{scenario['seed']} to {scenario['seed'] + n_seeds - 1}"
    made = {"simserve": result["version"], "scenario": scenario["digest"], "seeds": seeds}
    return page(headline, (*parts, capacity_warnings(result)), figures, made)
