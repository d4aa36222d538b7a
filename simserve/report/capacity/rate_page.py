"""The page of a rate or a concurrency: the highest load, what it comes to, the curves around it, what was tried."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.capacity.load_charts import LoadAxis, attainment_chart, latency_chart
from simserve.report.capacity.load_curve import CLIENTS, REQUESTS_PER_S, LoadUnit, alone_rows, turning
from simserve.report.capacity.rate import certainty, fails_first, gpus, wanted
from simserve.report.capacity.tail_tiles import tail_tiles
from simserve.report.capacity.words import WORDS, paragraphs
from simserve.report.cards import Key, card
from simserve.report.charts import Figure
from simserve.report.formats import SHORT, count, listed, number, plural, rate, seconds
from simserve.report.sections import pool_words, prose, section, table, text, tile
from simserve.report.study_page import Headline, study_page
from simserve.report.study_warnings import made_from, trust

Facts = Mapping[str, Any]

UNITS = {"rate": REQUESTS_PER_S, "concurrency": CLIENTS}
"""How a load is told, by what was asked."""


def render(found: Facts) -> str:
    """The page as HTML, from what `simserve capacity --json` prints when it was asked for a rate or a concurrency."""
    unit, answer = UNITS[found["asked"]], found["answer"]
    loads = LoadAxis(unit, answer and answer[unit.key])
    points = found.get("curve") or found["points"]
    figures = {name: drawn for name in _latencies(found) if (drawn := _latency(found, name, points, loads))}
    figures["attainment"] = attainment_chart(_crossing(found, unit.key), found["goal_frac"], loads)
    parts = (_curves(found, figures, unit), _binds(found, unit), _tried(found), trust(found))
    return study_page(_headline(found, unit), parts, figures, made_from(found))


def _headline(found: Facts, unit: LoadUnit) -> Headline:
    answer, name = found["answer"], found["scenario"]["name"]
    setup = f"{listed([pool_words(pool) for pool in found['pools']])}."
    if answer is None:
        at = unit.told(found["stopped_at"]["scale" if unit is CLIENTS else unit.key])
        is_met = found["state"] == "every load"
        title = f"Holds at every load up to {at}" if is_met else f"Does not hold even at {at}"
        return Headline("capacity", name, "edge" if is_met else "missed", title, paragraphs(found)[0], setup)
    state = "few" if not answer["n_enough"] else "met" if answer["is_precise"] else "edge"
    at = answer[unit.key]
    what = (
        f"p{found['goal_frac'] * 100:.4g} goodput: the highest rate"
        if unit is REQUESTS_PER_S
        else "highest concurrency"
    )
    lead = f"The {what} at which {wanted(found)} ({certainty(answer, unit.interval(at))}). {fails_first(answer)}"
    title = f"{unit.told(at['value'])} on {gpus(answer)}"
    return Headline("capacity", name, state, title, lead, setup, tuple(_tiles(found, unit)))


def _tiles(found: Facts, unit: LoadUnit) -> list[str]:
    answer = found["answer"]
    if unit is REQUESTS_PER_S:
        first = tile("Per GPU", f"{rate(answer['per_gpu_s']['value'])}/s", [prose(f"of {gpus(answer)}")])
    else:
        tokens = f"{rate(answer['output_tokens_per_s'])} output tokens/s"
        first = tile("Throughput", f"{rate(answer['requests_per_s'])}/s", [prose(tokens)])
    paid = [
        _tile_of(answer, "per_usd", "Per dollar", f"{answer['fleet']['usd_per_hour']:,.2f} $/h"),
        _tile_of(answer, "per_kwh", "Per kWh", f"{answer['fleet']['kw']:.3g} kW at full power"),
    ]
    at = min(_at_answer(found), key=lambda point: abs(point[unit.key] - answer[unit.key]["value"]))
    return [first, *filter(None, paid), *tail_tiles(at), *_knee_tile(found, unit)]


def _tile_of(answer: Facts, key: str, label: str, below: str) -> str | None:
    return None if answer[key] is None else tile(label, rate(answer[key]["value"]), [prose("requests"), prose(below)])


def _knee_tile(found: Facts, unit: LoadUnit) -> list[str]:
    """The first knee of those that matter."""
    turned = {name: found["knees"][name][unit.key] for name in turning(found)}
    knees = {name: at for name, at in turned.items() if at is not None}
    if not knees:
        return []
    first = min(knees, key=lambda name: float(knees[name]))
    return [tile("Knee", unit.bare(knees[first]), [prose(f"p99 {SHORT[first]} twice what it is under light load")])]


def _at_answer(found: Facts) -> list[Facts]:
    """Loads that were run with all the seeds of the answer."""
    return [point for point in found["points"] if point["n_runs"] == found["answer"]["n_seeds"]]


def _crossing(found: Facts, key: str) -> list[Facts]:
    """Loads in order: those whose seeds made the answer, and those of the curve that are not near it."""
    if found["answer"] is None:
        return list(found["points"])
    at = found["answer"][key]["value"]
    far = [point for point in found["curve"] if abs(point[key] / at - 1) > NEAR_FRAC]
    low, high = (f(point[key] for point in found["curve"]) for f in (min, max))
    near = [point for point in _at_answer(found) if low <= point[key] <= high and abs(point[key] / at - 1) <= NEAR_FRAC]
    return sorted([*far, *near], key=lambda point: float(point[key]))


def _latencies(found: Facts) -> list[str]:
    """Those of an SLO, with TTFT and TPOT."""
    given = {*found["slo"], *(key for targets in found["slo_classes"].values() for key in targets), "ttft_s", "tpot_s"}
    return [key for key in SHORT if key in given]


def _latency(found: Facts, name: str, points: Sequence[Facts], loads: LoadAxis) -> Figure | None:
    knee = (found.get("knees") or {}).get(name)
    slo = None if found["slo_classes"] else number(found["slo"].get(name))
    return latency_chart(points, name, loads, {"slo": slo, "knee": knee and knee[loads.unit.key]})


def _curves(found: Facts, figures: Mapping[str, Figure], unit: LoadUnit) -> str:
    """A chart a latency, and the one that the answer is read from."""
    keys: list[Key] = [
        ("k1", "p99"),
        ("dash k1", "p50"),
        ("dash k2", "SLO"),
        ("dot k3", "knee"),
        ("band k0", "answer, 95 %"),
    ]
    cards = "".join(
        card(name, figures, f"{SHORT[name]} against load", _latency_note(found, name, unit), keys, "No run had any.")
        for name in _latencies(found)
    )
    note = "Share of requests that met every SLO, with its 95 % interval. The answer is where it crosses the goal."
    crossing = card(
        "attainment", figures, "Attainment against load", note, [("k1", "attained"), ("dash k2", "goal")], ""
    )
    n = next(iter(found.get("curve") or found["points"]))["n_runs"]
    said = (
        f"Each point is the mean of {plural(n, 'run')}, all loads with the same seeds. Open marks: the queue only grew."
    )
    return section("curves", "Latency and attainment against load", said, f'<div class="pair">{cards}</div>{crossing}')


def _latency_note(found: Facts, name: str, unit: LoadUnit) -> str:
    knee = (found.get("knees") or {}).get(name)
    if knee is None:
        return "p50 and p99 by load."
    at = knee[unit.key]
    where = f"at {unit.told(at)}" if at is not None else "beyond what was tried"
    return f"Knee: p99 is twice the {seconds(knee['light_s'])} of light load {where}."


def _binds(found: Facts, unit: LoadUnit) -> str:
    """How far each SLO and class would hold alone."""
    if not found.get("alone"):
        return ""
    head, *rows = alone_rows(found, unit)
    note = "The highest load at which the goal holds, if nothing else had to."
    body = table(["", *(each.capitalize() for each in head[1:])], [(text(row[0]), row[1:]) for row in rows])
    return section("binds", "What binds", note, body)


def _tried(found: Facts) -> str:
    """Every load that was run."""
    head, *rows = WORDS[found["asked"]].rows(found)
    body = table(
        [str(head[0]).capitalize(), *head[1:]], [(text(row[0]), row[1:]) for row in rows], is_tall=len(rows) > MANY
    )
    total = sum(point["n_requests"] for point in found["points"])
    note = f"{plural(len(found['points']), 'load')}, {count(total)} requests in all; means over the runs of each."
    return section("loads", "What was tried", note, body)


NEAR_FRAC = 0.05
"""So near the answer only the runs that made it are drawn: fewer seeds would cross the goal elsewhere."""

MANY = 14
"""A longer table scrolls in its own frame on a screen."""
