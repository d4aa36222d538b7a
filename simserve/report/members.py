"""Members of a fleet that changed: how many replicas there were over time, by state, and what changed them and why."""

from collections.abc import Sequence
from itertools import accumulate

from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.scaling import ScalingJson
from simserve.report.charts import Figure, axis, figure, numbers, scatter
from simserve.report.document import Chapter, Plot, Row, Table
from simserve.report.formats import NONE, plural, rate, seconds, share
from simserve.report.run_view import RunView
from simserve.report.timeline import clock

MANY_MEMBERS = 20
"""A longer table scrolls in its own frame on a screen."""

KEYS = [("k1", "ready"), ("dash k0", "with GPUs: those that start or drain too")]


def members(reader: RunView, lives: Lifetimes) -> list[Chapter]:
    """Return the section of the page, if the fleet changed."""
    scaling = reader.summary.scaling
    if scaling is None:
        return []
    text = fleet_sentences(reader)
    rows = [
        Row(f"{number}", [seconds(at_s) for at_s in instants], why)
        for number, (instants, why) in enumerate(_rows(lives))
    ]
    table = Table(("Replica", "Ordered", "Ready", "Draining", "Gone"), rows, len(rows) > MANY_MEMBERS)
    return [Chapter("fleet", "Fleet", [Plot("fleet", _chart(lives), "Replicas over time", "", KEYS), table], text)]


def fleet_sentences(reader: RunView) -> str:
    """Return how large the fleet was, how often it changed, and for how long it was too small; "" for a fixed one."""
    scaling = reader.summary.scaling
    if scaling is None:
        return ""
    starting_s, gpu_s = reader.number("fleet.starting_gpu_s") or 0.0, reader.number("gpu_seconds") or 0.0
    starting = f", {share(starting_s / gpu_s)} of it starting" if starting_s and gpu_s else ""
    return " ".join(
        [
            f"Fleet: {rate(scaling.mean_gpus)} GPUs on average ({rate(scaling.gpu_hours)} GPU-hours{starting}), up to "
            f"{plural(scaling.most_replicas, 'ready replica')}, scaled {plural(scaling.n_scalings, 'time')}.",
            *_trouble(scaling),
        ]
    )


def _trouble(scaling: ScalingJson) -> list[str]:
    """Return what was wrong with the fleet."""
    texts = []
    if scaling.n_failures:
        texts.append(f"{plural(scaling.n_failures, 'replica')} failed.")
    if scaling.below_s:
        longest = f", up to {seconds(scaling.longest_below_s)} at a stretch"
        texts.append(f"For {seconds(scaling.below_s)}{longest}, fewer than 90% of arriving requests met the SLO.")
    return texts


def _rows(lives: Lifetimes) -> list[tuple[Sequence[float | None], str]]:
    return [((each.ordered_s, each.ready_s, each.draining_s, each.gone_s), each.why or NONE) for each in lives.members]


def _chart(lives: Lifetimes) -> Figure:
    """Return two lines: ready replicas, and all that have GPUs."""
    end_s = lives.facts.end_s
    unit_s, unit = clock(end_s)
    ready = _line([(each.ready_s, each.draining_s or each.gone_s) for each in lives.members], end_s)
    there = _line([(each.ordered_s, each.gone_s) for each in lives.members], end_s)
    lines = [
        scatter(
            "lines",
            numbers([at_s / unit_s for at_s, _ in line]),
            numbers([float(n) for _, n in line]),
            line={"color": color, "width": 2, "shape": "hv", "dash": dash},
            hovertemplate=f"%{{y}} {name}<extra></extra>",
        )
        for line, color, dash, name in (
            (there, "$c0", "4px,3px", "with GPUs"),
            (ready, "$c1", "solid", "ready"),
        )
    ]
    axes = {"xaxis": axis(f"Time, {unit}", rangemode="tozero"), "yaxis": axis("Replicas", rangemode="tozero")}
    return figure(lines, 260, **axes)


def _line(spans: Sequence[tuple[float | None, float | None]], end_s: float) -> list[tuple[float, int]]:
    """Return how many of some lives last at each instant at which that changes, up to the end."""
    changes: dict[float, int] = {0.0: 0, end_s: 0}
    for start_s, until_s in spans:
        if start_s is not None:
            changes[start_s] = changes.get(start_s, 0) + 1
            if until_s is not None:
                changes[until_s] = changes.get(until_s, 0) - 1
    instants = sorted(changes)
    counts = accumulate(changes[at_s] for at_s in instants)
    return [(at_s, n) for at_s, n in zip(instants, counts, strict=True) if at_s <= end_s]
