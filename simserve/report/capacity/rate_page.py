"""Page of a rate or a concurrency: the highest load, its efficiency, the load curves, and all loads."""

from simserve.metrics.answers.capacity_found import FoundClients, FoundRate
from simserve.metrics.answers.capacity_loads import ProbedLoad
from simserve.metrics.answers.parts import Bounded
from simserve.report.capacity import load_curve
from simserve.report.capacity.frame import CapacityHead, capacity_document, page_table, tail_tiles
from simserve.report.capacity.load_charts import LoadAxis, attainment_chart, below_chart, latency_chart
from simserve.report.capacity.rate import (
    SHOWN,
    between,
    certainty,
    count_on,
    fails_first,
    gpus,
    level,
    load_rows,
    own_load,
    sentence,
    stopped_at,
    wanted,
)
from simserve.report.charts import Figure
from simserve.report.document import Chapter, Document, Key, Plot, SideBySide, Tile
from simserve.report.formats import SHORT, count, plural, rate, seconds
from simserve.report.nominal_load import drawn


def tell(result: load_curve.Searched) -> Document:
    """Return all that the answer tells."""
    unit = load_curve.UNITS[result.question]
    brief = (sentence(result), " ".join(load_curve.sentences(result, unit)), load_rows(result))
    note = "Highest load that meets the goal for one criterion alone."
    binds = [Chapter("binds", "What binds", [load_curve.alone_rows(result, unit)], note)] if result.alone else []
    return capacity_document(result, _head(result, unit), (curves(result, unit), *binds, _probed(result)), brief)


def _head(result: load_curve.Searched, unit: load_curve.LoadUnit) -> CapacityHead:
    answer = result.answer
    if answer is None:
        last, is_met = stopped_at(result), result.state == "every load"
        end = unit.format(last.scale if unit is load_curve.CLIENTS else last.offered_per_s)
        title = f"Holds at every load up to {end}" if is_met else f"Does not hold even at {end}"
        state = ("met" if last.decision == "met" else "edge") if is_met else "missed"
        return CapacityHead(state, title, sentence(result))
    state = "few" if not answer.n_enough else "met" if answer.is_precise else "edge"
    at = answer.load
    what = f"{level(result)} goodput: the highest rate" if result.question == "rate" else "highest concurrency"
    lead = f"The {what} at which {wanted(result)} ({certainty(answer, between(at, unit))}). {fails_first(answer)}"
    texts = (count_on(at, unit), lead, own_load(result), drawn(result.load, answer.n_seeds))
    lead, title = " ".join(filter(None, texts)), f"{unit.format(at.value)} on {gpus(answer)}"
    return CapacityHead(state, title, lead, _tiles(result, answer, unit))


def _tiles(result: load_curve.Searched, answer: FoundRate | FoundClients, unit: load_curve.LoadUnit) -> list[Tile]:
    if result.question == "concurrency" and result.answer is not None:
        tokens = f"{rate(result.answer.output_tokens_per_s)} output tokens/s"
        first = Tile("Throughput", f"{rate(result.answer.requests_per_s)}/s", [tokens])
    else:
        first = Tile("Per GPU", f"{rate(answer.per_gpu_s.value)}/s", [f"on {gpus(answer)}"])
    load, paid = answer.load, [_tile_of("Per dollar", answer.per_usd, f"{answer.fleet.usd_per_hour:,.2f} $/h")]
    sure = []
    if load.count_on is None:
        paid.append(_tile_of("Per kWh", answer.per_kwh, f"{answer.fleet.kw:.3g} kW at full power"))
    else:
        by = "with cost error" if load.total else "by noise"
        sure.append(Tile("Count on", unit.bare(load.count_on), [f"P {load.at_confidence or 0.0:.0%} {by}"]))
    at = min(_with_seeds(result, answer.n_seeds), key=lambda point: abs(unit.of(point) - load.value))
    return [*sure, first, *filter(None, paid), *tail_tiles(at), *_knee_tile(result, unit)]


def _tile_of(label: str, paid: Bounded | None, below: str) -> Tile | None:
    return None if paid is None else Tile(label, rate(paid.value), ["requests", below])


def _knee_tile(result: load_curve.Searched, unit: load_curve.LoadUnit) -> list[Tile]:
    """Return the lowest knee."""
    loads = {name: unit.of(result.knees[name]) for name in load_curve.knee_latencies(result)}
    knees = {name: at for name, at in loads.items() if at is not None}
    if not knees:
        return []
    first = min(knees, key=lambda name: float(knees[name]))
    return [Tile("Knee", unit.bare(knees[first]), [f"p99 {SHORT[first]} doubles its light-load value"])]


def _with_seeds(result: load_curve.Searched, n_seeds: int) -> list[ProbedLoad]:
    """Return the loads with all seeds of the answer."""
    return [point for point in result.points if point.n_runs == n_seeds]


def _crossing(result: load_curve.Searched, unit: load_curve.LoadUnit) -> list[ProbedLoad]:
    """Return in order the loads with the answer's seeds, and those of the curve that are not near it."""
    if result.answer is None or not result.curve:
        return list(result.points)
    at = result.answer.load.value
    far = [point for point in result.curve if abs(unit.of(point) / at - 1) > NEAR_FRAC]
    low, high = (f(map(unit.of, result.curve)) for f in (min, max))
    own = _with_seeds(result, result.answer.n_seeds)
    near = [point for point in own if low <= unit.of(point) <= high and abs(unit.of(point) / at - 1) <= NEAR_FRAC]
    return sorted([*far, *near], key=unit.of)


def _latency(result: load_curve.Searched, name: str, loads: LoadAxis) -> Figure | None:
    knee = loads.unit.of(result.knees[name]) if name in result.knees else None
    slo = None if result.slo_classes else result.slo.get(name)
    return latency_chart(result.curve or result.points, name, loads, {"slo": slo, "knee": knee})


def curves(result: load_curve.Searched, unit: load_curve.LoadUnit) -> Chapter:
    """Return a chart per latency, and the chart of attainment with the answer."""
    loads = LoadAxis(unit, None if result.answer is None else result.answer.load)
    keys: list[Key] = [
        ("k1", "p99"),
        ("dash k1", "p50"),
        ("dash k2", "SLO"),
        ("dot k3", "knee"),
        ("band k0", "answer, 95%"),
    ]
    latencies = [
        Plot(
            name,
            _latency(result, name, loads),
            f"{SHORT[name]} against load",
            _latency_note(result, name, unit),
            keys,
            "No run had any.",
        )
        for name in SHORT
        if name in load_curve.limited(result) or name in SHOWN
    ]
    crossed = _crossing(result, unit)
    note = "Share of requests that met every SLO, with its 95% CI. The answer is where it crosses the goal."
    note += below_chart(crossed, result.goal_frac)
    if result.answer is not None:
        note += (
            f" Within {100 * NEAR_FRAC:.0f}% of the answer, only loads with all its seeds are drawn; the table has all."
        )
    figure = attainment_chart(crossed, result.goal_frac, loads)
    keys = [("k1", "attained"), ("dash k2", "goal")]
    crossing = Plot("attainment", figure, "Attainment against load", note, keys)
    n = (result.curve or result.points)[0].n_runs
    intro = (
        f"Each point is the mean of {plural(n, 'run')}; all loads use the same seeds. Open marks: the queue only grew."
    )
    return Chapter("curves", "Latency and attainment against load", [SideBySide(latencies), crossing], intro)


def _latency_note(result: load_curve.Searched, name: str, unit: load_curve.LoadUnit) -> str:
    knee = result.knees.get(name)
    if knee is None:
        return f"p50 and p99 by load.{_without(result, name)}"
    at = unit.of(knee)
    where = f"at {unit.format(at)}" if at is not None else "beyond the loads that ran"
    return f"Knee: p99 doubles its light-load value ({seconds(knee.light_s)}) {where}.{_without(result, name)}"


def _without(result: load_curve.Searched, name: str) -> str:
    """Return how many loads of a chart no request finished at; empty where there are none."""
    n = sum(point.latency_s(name, "p99") is None for point in result.curve or result.points)
    return f" {plural(n, 'load')} without one {'is' if n == 1 else 'are'} not drawn." if n else ""


def _probed(result: load_curve.Searched) -> Chapter:
    """Return the table of all loads that ran."""
    rows = load_rows(result)
    total = sum(point.n_requests for point in result.points)
    note = f"{plural(len(result.points), 'load')}, {count(total)} requests in all; means over runs."
    return Chapter("loads", "All loads", [page_table(rows, is_tall=len(rows.rows) > MANY)], note)


NEAR_FRAC = 0.05
"""Distance from the answer within which only its own runs are drawn: fewer seeds cross the goal elsewhere."""

MANY = 14
"""Rows beyond which a table scrolls in a frame of its own."""
