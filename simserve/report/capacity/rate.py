"""Capacity text: the highest rate or number of clients, its efficiency, and the table of loads."""

from collections.abc import Callable, Sequence

from simserve.metrics.answer import BEYOND_FRAC
from simserve.metrics.answers.capacity import CapacityStudy, ConcurrencyCapacity, RateCapacity
from simserve.metrics.answers.capacity_found import FoundClients, FoundRate, FoundSplit
from simserve.metrics.answers.capacity_loads import LATENCIES, ProbedLoad
from simserve.metrics.answers.parts import FoundLoad
from simserve.metrics.goal import probability
from simserve.metrics.summary_schema import EARLIER
from simserve.report.capacity.load_curve import CLIENTS, REQUESTS_PER_S, LoadUnit, Searched, limited
from simserve.report.document import Table
from simserve.report.formats import NONE, SHORT, count, goal, interval, listed, plural, rate, seconds, share, slo_terms
from simserve.report.nominal_load import BY_WORD, drawn

Found = FoundRate | FoundClients | FoundSplit
Columns = dict[str, Callable[[ProbedLoad], str]]
"""Titles of columns, and what stands there of a load."""

HOLDS: dict[str | None, str] = {"met": "holds", "edge": "may hold", "missed": "may hold"}
"""Verb for a load, by its decision."""

LEAST_SHOWN = 0.005
"""Probability below which the answer says nothing about capacity."""

SHOWN = ("ttft_s", "tpot_s")
"""Latencies that the table always shows."""


def sentence(result: Searched) -> str:
    """Return the answer: the load, its interval, what fails, its price."""
    name = result.scenario.name
    if result.question == "rate":
        if result.answer is None:
            return _none(result, f"rate of {name}", f"{rate(stopped_at(result).offered_per_s)} req/s")
        return " ".join(filter(None, _of_rate(result, result.answer, name)))
    if result.answer is None:
        return _none(result, f"concurrency of {name}", count(stopped_at(result).scale))
    return " ".join(filter(None, _of_clients(result, result.answer, name)))


def stopped_at(result: Searched) -> ProbedLoad:
    """Return where the search of a result without an answer stopped."""
    assert result.stopped_at is not None
    return result.stopped_at


def _of_rate(result: RateCapacity, answer: FoundRate, name: str) -> list[str]:
    offered, load = answer.offered_per_s, result.load
    ci = certainty(answer, between(offered, REQUESTS_PER_S))
    nominal = "nominal " if load and load.nominal_per_s else ""
    return [
        f"{level(result)} goodput of {name}: {rate(offered.value)} req/s on {gpus(answer)} ({ci}).",
        count_on(offered, REQUESTS_PER_S),
        f"It is the highest {nominal}rate at which {wanted(result)}.",
        fails_first(answer),
        _beyond(answer),
        own_load(result),
        f"Efficiency: {per_each(answer)}.",
        drawn(result.load, answer.n_seeds),
        _imprecise(result, answer),
    ]


def _of_clients(result: ConcurrencyCapacity, answer: FoundClients, name: str) -> list[str]:
    n = answer.concurrency
    ci = certainty(answer, between(n, CLIENTS))
    few_turns = "Each client sends fewer than ten requests, so the burst at the start dominates"
    return [
        f"{name} sustains {plural(n.value, 'client')} at once on {gpus(answer)} ({ci}).",
        count_on(n, CLIENTS),
        f"It is the highest concurrency at which {wanted(result)}; {answer.clients_per_gpu:.4g} per GPU.",
        fails_first(answer),
        f"Throughput: {rate(answer.requests_per_s)} req/s, {rate(answer.output_tokens_per_s)} output tokens/s.",
        f"Efficiency: {per_each(answer)}.",
        _imprecise(result, answer),
        "" if answer.enough_turns else f"{few_turns}: raise workload.n_requests.",
    ]


def own_load(result: Searched) -> str:
    """Return whether the scenario meets its SLO at its own load; nothing where that was not run."""
    own = result.own_load if result.question == "rate" else None
    if own is None:
        return ""
    at = f"The scenario's own load, {rate(own.offered_per_s)} req/s, {BY_WORD[own.word or EARLIER[own.decision or '']]}"
    if own.saturated:
        return f"{at}: the queue only grows."
    beyond_frac = own.probability_beyond_capacity or 0.0
    if beyond_frac > 1 - BEYOND_FRAC:
        at += f" (beyond capacity with a probability of {probability(beyond_frac)})"
    ends = interval(own.low_frac, own.high_frac)
    ci = "" if ends == NONE else f" (95% CI {ends}, {plural(own.n_runs, 'seed')})"
    sure = "" if own.probability is None else f"; P {probability(own.probability)}"
    return f"{at}: {share(own.attained_frac)} of requests attain it{ci}{sure}."


def level(result: CapacityStudy) -> str:
    """Return the name of the goal: `p99`, `p99.9`."""
    return f"p{result.goal_frac * 100:.4g}"


def wanted(result: CapacityStudy) -> str:
    """Return `99% of requests have TTFT ≤ 500 ms`."""
    terms = "latencies within the SLO of their class" if result.slo_classes else slo_terms(result.slo)
    return f"{result.goal_frac * 100:.4g}% of requests have {terms}"


def gpus(answer: Found) -> str:
    """Return `2 GPUs`."""
    return plural(answer.fleet.n_gpus, "GPU")


def between(load: FoundLoad, unit: LoadUnit) -> str:
    """Return `13.2–13.6 by noise, 11.9–14.8 with cost error`, or `not known`."""
    ci = unit.interval(load)
    ci = "not known" if ci == NONE else ci
    return f"{ci} by noise, {unit.span(load.total)} with cost error" if load.total else ci


def count_on(load: FoundLoad, unit: LoadUnit) -> str:
    """Return the load to count on, or why there is none; nothing where that is not known."""
    if load.count_on is not None:
        of = "" if load.total else ", as if costs were exact"
        return f"Count on {unit.format(load.count_on)} (P {load.at_confidence or 0.0:.0%}{of})."
    if load.total is None:
        return ""
    return "Costs are too uncertain to count on a load: calibrate with a log of your server, or add --by noise."


def certainty(answer: Found, ends: str) -> str:
    """Return `95% CI 13.2–13.6, 8 seeds`; without an interval where every seed gives the same run."""
    if answer.n_seeds == 1:
        total = f"; {ends.partition(', ')[2]}" if "with cost" in ends else ""
        return f"one run, as every seed gives the same; no interval{' by noise' if total else ''}{total}"
    return f"{answer.confidence * 100:.0f}% CI {ends}, {answer.n_seeds} seeds"


def per_each(answer: Found) -> str:
    """Return requests per GPU, dollar and kWh."""
    terms = [f"{rate(answer.per_gpu_s.value)} req/s per GPU"]
    if answer.per_usd is not None:
        terms.append(f"{rate(answer.per_usd.value)} requests per dollar")
    if answer.per_kwh is not None:
        terms.append(f"{rate(answer.per_kwh.value)} per kWh at full GPU power")
    return listed(terms)


def fails_first(answer: Found) -> str:
    """Return what fails beyond the answer."""
    key = answer.fails_first
    return "Beyond it the queue only grows." if key == "queue" else f"Beyond it {SHORT[key]} fails first."


def _beyond(answer: FoundRate) -> str:
    """Return how likely the answer is beyond capacity; nothing where that is unknown or hardly possible."""
    near, chance = answer.near_capacity, answer.probability_beyond_capacity
    if not near or chance is None or chance < LEAST_SHOWN:
        return ""
    ends = f"{near.confidence:.0%} prediction interval {rate(near.low_per_s)}–{rate(near.high_per_s)}"
    return (
        f"Allowing for cost-model error, the capacity is {rate(near.capacity_per_s)} req/s ({ends}), and the answer "
        f"is beyond it with a probability of {probability(chance)}."
    )


def _imprecise(result: Searched, answer: FoundRate | FoundClients) -> str:
    """Return why the answer is imprecise; nothing where it is not."""
    sentences = []
    if answer.n_seeds > 1 and answer.load.low is None:
        sentences.append("Its interval is unknown: queues begin to grow with too few seeds.")
    elif answer.n_seeds > 1 and not answer.is_precise:
        precision = f"±{answer.precision_frac * 100:.3g}%"
        sentences.append(f"The interval is wider than {precision} with {answer.n_seeds} seeds: lengthen the runs.")
    if not answer.n_enough:
        guess = f"{level(result)} of {plural(answer.n_requests, 'request')} is a guess; it takes"
        sentences.append(f"{guess} {count(10 / (1 - result.goal_frac))}: lengthen the runs.")
    return " ".join(sentences)


def _none(result: Searched, load: str, at: str) -> str:
    """Return why there is no answer: every load holds, or none does."""
    last = stopped_at(result)
    if result.state == "every load":
        return f"Every {load} up to {at}, where the search stopped, {HOLDS[last.decision]}: {wanted(result)}."
    key, frac = min(last.by_slo.items(), key=lambda item: item[1] or 0.0)
    limit = f"≤ {goal(result.slo[key])}" if key in result.slo and not result.slo_classes else "for their class"
    why = f"there {share(frac)} of requests meet {SHORT[key]} {limit}, p99 is {seconds(last.latency_s(key, 'p99'))}"
    if last.saturated:
        why = "even there the queue only grows"
    return f"No {load} holds, down to {at}, where the search stopped ({why}): {wanted(result)}."


LOAD_COLUMNS: Columns = {
    "runs": lambda point: str(point.n_runs),
    "attained": lambda point: "saturated" if point.saturated else share(point.attained_frac),
    "95% CI": lambda point: NONE if point.saturated else interval(point.low_frac, point.high_frac),
}
"""What every table says of a load: the share that met every SLO, with its interval."""


def load_rows(result: Searched) -> Table:
    """Return one row per load, the lowest first."""
    if result.question == "concurrency":
        clients: Columns = {"clients": lambda point: count(point.concurrency)}
        return load_table(
            result, result.points, clients | LOAD_COLUMNS | {"req/s": lambda point: rate(point.requests_per_s)}
        )
    points = sorted(result.points, key=REQUESTS_PER_S.of)
    offered: Columns = {"req/s": lambda point: rate(point.offered_per_s)}
    return load_table(result, points, offered | LOAD_COLUMNS)


def load_table(result: CapacityStudy, points: Sequence[ProbedLoad], columns: Columns) -> Table:
    """Return one row per load: these columns, then TTFT, TPOT and latencies with an SLO."""
    given = {*limited(result), *SHOWN}
    keys = [key for key in LATENCIES if key in given]
    figures = [(key, level) for key in keys for level in ("p50", "p99")]
    rows: list[Sequence[str]] = [(*columns, *(f"{level} {SHORT[key]}" for key, level in figures))]
    for point in points:
        latencies = [seconds(point.latency_s(key, level)) for key, level in figures]
        rows.append([cell(point) for cell in columns.values()] + latencies)
    return Table.of(rows, dropped=[head for level in ("p50", "p99") for head in rows[0] if head.startswith(level)])
