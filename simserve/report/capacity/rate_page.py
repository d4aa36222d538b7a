"""Page of a rate or a concurrency: the highest load, its efficiency, the load curves, and all loads."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.capacity.load_charts import LoadAxis, attainment_chart, below_chart, latency_chart
from simserve.report.capacity.load_curve import (
    CLIENTS,
    REQUESTS_PER_S,
    UNITS,
    LoadUnit,
    alone_rows,
    knee_latencies,
    limited,
)
from simserve.report.capacity.rate import (
    SHOWN,
    capacity_page,
    capitalized,
    certainty,
    fails_first,
    gpus,
    level,
    own_load,
    sentence,
    table_rows,
    tail_tiles,
    wanted,
)
from simserve.report.charts import Figure
from simserve.report.document import Headline
from simserve.report.formats import SHORT, count, number, plural, rate, seconds
from simserve.report.nominal_load import drawn
from simserve.report.pools import pools_words
from simserve.report.sections import Key, card, prose, row_table, section, tile

Facts = Mapping[str, Any]


def render(result: Facts) -> str:
    """Return the page as HTML, from what `simserve capacity --json` prints for a rate or a concurrency."""
    unit, answer = UNITS[result["asked"]], result["answer"]
    loads = LoadAxis(unit, answer and answer[unit.key])
    points = result.get("curve") or result["points"]
    figures = {name: chart for name in _latencies(result) if (chart := _latency(result, name, points, loads))}
    figures["attainment"] = attainment_chart(_crossing(result, unit.key), result["goal_frac"], loads)
    parts = (_curves(result, figures, unit), _binds(result, unit), _probed(result))
    return capacity_page(result, _headline(result, unit), parts, figures)


def _headline(result: Facts, unit: LoadUnit) -> Headline:
    answer, name = result["answer"], result["scenario"]["name"]
    setup = (pools_words(result["pools"]),)
    if answer is None:
        at = unit.format(result["stopped_at"]["scale" if unit is CLIENTS else unit.key])
        is_met = result["state"] == "every load"
        title = f"Holds at every load up to {at}" if is_met else f"Does not hold even at {at}"
        state = ("met" if result["stopped_at"]["decision"] == "met" else "edge") if is_met else "missed"
        return Headline("capacity", name, state, title, sentence(result), setup)
    state = "few" if not answer["n_enough"] else "met" if answer["is_precise"] else "edge"
    at = answer[unit.key]
    is_rate = unit is REQUESTS_PER_S
    what = f"{level(result)} goodput: the highest rate" if is_rate else "highest concurrency"
    lead = f"The {what} at which {wanted(result)} ({certainty(answer, unit.interval(at))}). {fails_first(answer)}"
    lead = " ".join(part for part in (lead, own_load(result), drawn(result.get("load"), answer["n_seeds"])) if part)
    title = f"{unit.format(at['value'])} on {gpus(answer)}"
    return Headline("capacity", name, state, title, lead, setup, tuple(_tiles(result, unit)))


def _tiles(result: Facts, unit: LoadUnit) -> list[str]:
    answer = result["answer"]
    if unit is REQUESTS_PER_S:
        first = tile("Per GPU", f"{rate(answer['per_gpu_s']['value'])}/s", [prose(f"on {gpus(answer)}")])
    else:
        tokens = f"{rate(answer['output_tokens_per_s'])} output tokens/s"
        first = tile("Throughput", f"{rate(answer['requests_per_s'])}/s", [prose(tokens)])
    paid = [
        _tile_of(answer, "per_usd", "Per dollar", f"{answer['fleet']['usd_per_hour']:,.2f} $/h"),
        _tile_of(answer, "per_kwh", "Per kWh", f"{answer['fleet']['kw']:.3g} kW at full power"),
    ]
    at = min(_at_answer(result), key=lambda point: abs(point[unit.key] - answer[unit.key]["value"]))
    return [first, *filter(None, paid), *tail_tiles(at), *_knee_tile(result, unit)]


def _tile_of(answer: Facts, key: str, label: str, below: str) -> str | None:
    return None if answer[key] is None else tile(label, rate(answer[key]["value"]), [prose("requests"), prose(below)])


def _knee_tile(result: Facts, unit: LoadUnit) -> list[str]:
    """Return the lowest knee."""
    loads = {name: result["knees"][name][unit.key] for name in knee_latencies(result)}
    knees = {name: at for name, at in loads.items() if at is not None}
    if not knees:
        return []
    first = min(knees, key=lambda name: float(knees[name]))
    return [tile("Knee", unit.bare(knees[first]), [prose(f"p99 {SHORT[first]} doubles its light-load value")])]


def _at_answer(result: Facts) -> list[Facts]:
    """Return the loads with all seeds of the answer."""
    return [point for point in result["points"] if point["n_runs"] == result["answer"]["n_seeds"]]


def _crossing(result: Facts, key: str) -> list[Facts]:
    """Return in order the loads with the answer's seeds, and those of the curve that are not near it."""
    if result["answer"] is None:
        return list(result["points"])
    at = result["answer"][key]["value"]
    far = [point for point in result["curve"] if abs(point[key] / at - 1) > NEAR_FRAC]
    low, high = (f(point[key] for point in result["curve"]) for f in (min, max))
    near = [
        point for point in _at_answer(result) if low <= point[key] <= high and abs(point[key] / at - 1) <= NEAR_FRAC
    ]
    return sorted([*far, *near], key=lambda point: float(point[key]))


def _latencies(result: Facts) -> list[str]:
    """Return the latencies with an SLO, TTFT and TPOT."""
    return [key for key in SHORT if key in limited(result) or key in SHOWN]


def _latency(result: Facts, name: str, points: Sequence[Facts], loads: LoadAxis) -> Figure | None:
    knee = (result.get("knees") or {}).get(name)
    slo = None if result["slo_classes"] else number(result["slo"].get(name))
    return latency_chart(points, name, loads, {"slo": slo, "knee": knee and knee[loads.unit.key]})


def _curves(result: Facts, figures: Mapping[str, Figure], unit: LoadUnit) -> str:
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
    crossed = _crossing(result, unit.key)
    note = "Share of requests that met every SLO, with its 95% CI. The answer is where it crosses the goal."
    note += below_chart(crossed, result["goal_frac"])
    if result["answer"] is not None:
        note += (
            f" Within {100 * NEAR_FRAC:.0f}% of the answer, only loads with all its seeds are drawn; the table has all."
        )
    crossing = card(
        "attainment", figures, "Attainment against load", note, [("k1", "attained"), ("dash k2", "goal")], ""
    )
    n = next(iter(result.get("curve") or result["points"]))["n_runs"]
    intro = (
        f"Each point is the mean of {plural(n, 'run')}; all loads use the same seeds. Open marks: the queue only grew."
    )
    return section("curves", "Latency and attainment against load", intro, f'<div class="pair">{cards}</div>{crossing}')


def _latency_note(result: Facts, name: str, unit: LoadUnit) -> str:
    knee = (result.get("knees") or {}).get(name)
    if knee is None:
        return f"p50 and p99 by load.{_without(result, name)}"
    at = knee[unit.key]
    where = f"at {unit.format(at)}" if at is not None else "beyond the loads that ran"
    return f"Knee: p99 doubles its light-load value ({seconds(knee['light_s'])}) {where}.{_without(result, name)}"


def _without(result: Facts, name: str) -> str:
    """Return how many loads of a chart no request finished at; empty where there are none."""
    n = sum(number(point[name]["p99"]) is None for point in result.get("curve") or result["points"])
    return f" {plural(n, 'load')} without one {'is' if n == 1 else 'are'} not drawn." if n else ""


def _binds(result: Facts, unit: LoadUnit) -> str:
    """Return the table of each SLO and class alone."""
    if not result.get("alone"):
        return ""
    head, *rows = alone_rows(result, unit)
    heads = ["", *(each.capitalize() for each in head[1:])]
    note = "Highest load that meets the goal for one criterion alone."
    return section("binds", "What binds", note, row_table([heads, *rows]))


def _probed(result: Facts) -> str:
    """Return the table of all loads that ran."""
    rows = capitalized(table_rows(result))
    total = sum(point["n_requests"] for point in result["points"])
    note = f"{plural(len(result['points']), 'load')}, {count(total)} requests in all; means over runs."
    return section("loads", "All loads", note, row_table(rows, is_tall=len(rows) - 1 > MANY))


NEAR_FRAC = 0.05
"""Distance from the answer within which only its own runs are drawn: fewer seeds cross the goal elsewhere."""

MANY = 14
"""Rows beyond which a table scrolls in a frame of its own."""
