"""Page of a rate or a concurrency: the highest load, its efficiency, the load curves, and all loads."""

from collections.abc import Mapping, Sequence

from simserve.metrics.answers.capacity_found import FoundClients, FoundRate
from simserve.metrics.answers.capacity_loads import ProbedLoad
from simserve.metrics.answers.parts import Bounded
from simserve.report.capacity.frame import capacity_page, capitalized, setup, tail_tiles
from simserve.report.capacity.load_charts import LoadAxis, attainment_chart, below_chart, latency_chart
from simserve.report.capacity.load_curve import (
    CLIENTS,
    UNITS,
    LoadUnit,
    Searched,
    alone_rows,
    knee_latencies,
    limited,
)
from simserve.report.capacity.rate import (
    SHOWN,
    between,
    certainty,
    count_on,
    drawn_by_seeds,
    fails_first,
    gpus,
    level,
    own_load,
    sentence,
    stopped_at,
    table_rows,
    wanted,
)
from simserve.report.charts import Figure
from simserve.report.document import Headline
from simserve.report.formats import SHORT, count, plural, rate, seconds
from simserve.report.sections import Key, card, prose, row_table, section, tile


def render(result: Searched) -> str:
    """Return the page as HTML."""
    unit, answer = UNITS[result.question], result.answer
    loads = LoadAxis(unit, None if answer is None else answer.load)
    points = result.curve or result.points
    figures = {name: chart for name in _latencies(result) if (chart := _latency(result, name, points, loads))}
    figures["attainment"] = attainment_chart(_crossing(result, unit), result.goal_frac, loads)
    parts = (_curves(result, figures, unit), _binds(result, unit), _probed(result))
    return capacity_page(result, _headline(result, unit), parts, figures)


def _headline(result: Searched, unit: LoadUnit) -> Headline:
    answer, name = result.answer, result.scenario.name
    if answer is None:
        last, is_met = stopped_at(result), result.state == "every load"
        end = unit.format(last.scale if unit is CLIENTS else last.offered_per_s)
        title = f"Holds at every load up to {end}" if is_met else f"Does not hold even at {end}"
        state = ("met" if last.decision == "met" else "edge") if is_met else "missed"
        return Headline("capacity", name, state, title, sentence(result), setup(result))
    state = "few" if not answer.n_enough else "met" if answer.is_precise else "edge"
    at = answer.load
    what = f"{level(result)} goodput: the highest rate" if result.question == "rate" else "highest concurrency"
    lead = f"The {what} at which {wanted(result)} ({certainty(answer, between(at, unit))}). {fails_first(answer)}"
    texts = (count_on(at, unit), lead, own_load(result), drawn_by_seeds(result, answer.n_seeds))
    lead, title = " ".join(filter(None, texts)), f"{unit.format(at.value)} on {gpus(answer)}"
    return Headline("capacity", name, state, title, lead, setup(result), tuple(_tiles(result, answer, unit)))


def _tiles(result: Searched, answer: FoundRate | FoundClients, unit: LoadUnit) -> list[str]:
    if result.question == "concurrency" and result.answer is not None:
        tokens = f"{rate(result.answer.output_tokens_per_s)} output tokens/s"
        first = tile("Throughput", f"{rate(result.answer.requests_per_s)}/s", [prose(tokens)])
    else:
        first = tile("Per GPU", f"{rate(answer.per_gpu_s.value)}/s", [prose(f"on {gpus(answer)}")])
    load, paid = answer.load, [_tile_of("Per dollar", answer.per_usd, f"{answer.fleet.usd_per_hour:,.2f} $/h")]
    sure = []
    if load.count_on is None:
        paid.append(_tile_of("Per kWh", answer.per_kwh, f"{answer.fleet.kw:.3g} kW at full power"))
    else:
        by = "with cost error" if load.total else "by noise"
        sure.append(tile("Count on", unit.bare(load.count_on), [prose(f"P {load.at_confidence or 0.0:.0%} {by}")]))
    at = min(_with_seeds(result, answer.n_seeds), key=lambda point: abs(unit.of(point) - load.value))
    return [*sure, first, *filter(None, paid), *tail_tiles(at), *_knee_tile(result, unit)]


def _tile_of(label: str, paid: Bounded | None, below: str) -> str | None:
    return None if paid is None else tile(label, rate(paid.value), [prose("requests"), prose(below)])


def _knee_tile(result: Searched, unit: LoadUnit) -> list[str]:
    """Return the lowest knee."""
    loads = {name: unit.of(result.knees[name]) for name in knee_latencies(result)}
    knees = {name: at for name, at in loads.items() if at is not None}
    if not knees:
        return []
    first = min(knees, key=lambda name: float(knees[name]))
    return [tile("Knee", unit.bare(knees[first]), [prose(f"p99 {SHORT[first]} doubles its light-load value")])]


def _with_seeds(result: Searched, n_seeds: int) -> list[ProbedLoad]:
    """Return the loads with all seeds of the answer."""
    return [point for point in result.points if point.n_runs == n_seeds]


def _crossing(result: Searched, unit: LoadUnit) -> list[ProbedLoad]:
    """Return in order the loads with the answer's seeds, and those of the curve that are not near it."""
    if result.answer is None:
        return list(result.points)
    at = result.answer.load.value
    far = [point for point in result.curve if abs(unit.of(point) / at - 1) > NEAR_FRAC]
    low, high = (f(map(unit.of, result.curve)) for f in (min, max))
    own = _with_seeds(result, result.answer.n_seeds)
    near = [point for point in own if low <= unit.of(point) <= high and abs(unit.of(point) / at - 1) <= NEAR_FRAC]
    return sorted([*far, *near], key=unit.of)


def _latencies(result: Searched) -> list[str]:
    """Return the latencies with an SLO, TTFT and TPOT."""
    return [key for key in SHORT if key in limited(result) or key in SHOWN]


def _latency(result: Searched, name: str, points: Sequence[ProbedLoad], loads: LoadAxis) -> Figure | None:
    knee = loads.unit.of(result.knees[name]) if name in result.knees else None
    slo = None if result.slo_classes else result.slo.get(name)
    return latency_chart(points, name, loads, {"slo": slo, "knee": knee})


def _curves(result: Searched, figures: Mapping[str, Figure], unit: LoadUnit) -> str:
    """Return a chart per latency, and the chart of attainment with the answer."""
    keys: list[Key] = [
        ("k1", "p99"),
        ("dash k1", "p50"),
        ("dash k2", "SLO"),
        ("dot k3", "knee"),
        ("band k0", "answer, 95%"),
    ]
    cards = "".join(
        card(name, figures, f"{SHORT[name]} against load", _latency_note(result, name, unit), keys, "No run had any.")
        for name in _latencies(result)
    )
    crossed = _crossing(result, unit)
    note = "Share of requests that met every SLO, with its 95% CI. The answer is where it crosses the goal."
    note += below_chart(crossed, result.goal_frac)
    if result.answer is not None:
        note += (
            f" Within {100 * NEAR_FRAC:.0f}% of the answer, only loads with all its seeds are drawn; the table has all."
        )
    crossing = card(
        "attainment", figures, "Attainment against load", note, [("k1", "attained"), ("dash k2", "goal")], ""
    )
    n = (result.curve or result.points)[0].n_runs
    intro = (
        f"Each point is the mean of {plural(n, 'run')}; all loads use the same seeds. Open marks: the queue only grew."
    )
    return section("curves", "Latency and attainment against load", intro, f'<div class="pair">{cards}</div>{crossing}')


def _latency_note(result: Searched, name: str, unit: LoadUnit) -> str:
    knee = result.knees.get(name)
    if knee is None:
        return f"p50 and p99 by load.{_without(result, name)}"
    at = unit.of(knee)
    where = f"at {unit.format(at)}" if at is not None else "beyond the loads that ran"
    return f"Knee: p99 doubles its light-load value ({seconds(knee.light_s)}) {where}.{_without(result, name)}"


def _without(result: Searched, name: str) -> str:
    """Return how many loads of a chart no request finished at; empty where there are none."""
    n = sum(point.latency_s(name, "p99") is None for point in result.curve or result.points)
    return f" {plural(n, 'load')} without one {'is' if n == 1 else 'are'} not drawn." if n else ""


def _binds(result: Searched, unit: LoadUnit) -> str:
    """Return the table of each SLO and class alone."""
    if not result.alone:
        return ""
    head, *rows = alone_rows(result, unit)
    heads = ["", *(each.capitalize() for each in head[1:])]
    note = "Highest load that meets the goal for one criterion alone."
    return section("binds", "What binds", note, row_table([heads, *rows]))


def _probed(result: Searched) -> str:
    """Return the table of all loads that ran."""
    rows = capitalized(table_rows(result))
    total = sum(point.n_requests for point in result.points)
    note = f"{plural(len(result.points), 'load')}, {count(total)} requests in all; means over runs."
    return section("loads", "All loads", note, row_table(rows, is_tall=len(rows) - 1 > MANY))


NEAR_FRAC = 0.05
"""Distance from the answer within which only its own runs are drawn: fewer seeds cross the goal elsewhere."""

MANY = 14
"""Rows beyond which a table scrolls in a frame of its own."""
