"""Replicas of a run: a row each, and of a fleet that changed how many there were over time, and what changed them."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.lifetimes import INSTANTS, Lifetimes
from simserve.metrics.scaling import ScalingJson
from simserve.report.chart_data import Floats, PageData
from simserve.report.charts import axis, figure, numbers, scatter
from simserve.report.document import Chapter, Paragraph, Plot, Row, Table
from simserve.report.formats import NONE, count, plural, rate, seconds, share
from simserve.report.run_view import RunView
from simserve.report.timeline import clock

MANY_MEMBERS, MANY_REPLICAS = 20, 12
"""A longer table scrolls in its own frame on a screen."""


def members(reader: RunView, lives: Lifetimes) -> list[Chapter]:
    """Return the section of the page, if the fleet changed."""
    scaling = reader.summary.scaling
    if scaling is None:
        return []
    rows = [
        Row(f"{number}", [seconds(getattr(each, instant)) for instant in INSTANTS], each.why or NONE)
        for number, each in enumerate(lives.members)
    ]
    heads = (instant.removesuffix("_s").capitalize() for instant in INSTANTS)
    table = Table(("Replica", *heads), rows, len(rows) > MANY_MEMBERS)
    return [Chapter("fleet", "Fleet", [_chart(lives), table], fleet_sentences(reader))]


def fleet_sentences(reader: RunView) -> str:
    """Return how large the fleet was, how often it changed, and for how long it was too small; "" for a fixed one."""
    scaling = reader.summary.scaling
    if scaling is None:
        return ""
    starting_s, gpu_s = reader.number("fleet.starting_gpu_s") or 0.0, reader.number("gpu_seconds") or 0.0
    starting = f", {share(starting_s / gpu_s)} of it starting" if starting_s and gpu_s else ""
    return " ".join(
        [
            f"{rate(scaling.mean_gpus)} GPUs on average ({rate(scaling.gpu_hours)} GPU-hours{starting}), up to "
            f"{plural(scaling.most_replicas, 'ready replica')}, scaled {plural(scaling.n_scalings, 'time')}.",
            *_trouble(scaling),
        ]
    )


def _trouble(scaling: ScalingJson) -> list[str]:
    """Return what disturbed the fleet."""
    texts = []
    if scaling.n_failures:
        texts.append(f"{plural(scaling.n_failures, 'replica')} failed.")
    if scaling.below_s:
        longest = f", up to {seconds(scaling.longest_below_s)} at a stretch"
        texts.append(f"For {seconds(scaling.below_s)}{longest}, fewer than 90% of arriving requests met the SLO.")
    met = scaling.rollout_attained_frac
    if scaling.rollout_s is not None:
        attained = "" if met is None else f", in which {share(met)} of arriving requests met the SLO"
        texts.append(f"The roll-out took {seconds(scaling.rollout_s)}{attained}.")
    elif met is not None:
        texts.append(f"The roll-out has not ended: {share(met)} of requests that arrived since it began met the SLO.")
    return texts


def _chart(lives: Lifetimes) -> Plot:
    """Return two lines: ready replicas, and all that have GPUs."""
    end_s = lives.facts.end_s
    ready = [(each.ready_s, each.gone_s if each.draining_s is None else each.draining_s) for each in lives.members]
    there = [(each.ordered_s, each.gone_s) for each in lives.members]
    lines = (
        ("dash k0", "with GPUs: those that start or drain too", _line(there, end_s)),
        ("k1", "ready", _line(ready, end_s)),
    )
    return replicas_over_time("fleet", end_s, lines, "Replicas over time")


def replicas_over_time(
    name: str, end_s: float, lines: Iterable[tuple[str, str, Iterable[tuple[float, float | None]]]], title: str = ""
) -> Plot:
    """Return a chart of steps; each line has a key (`k1`, or `dash k0` in the color of text), a name, and points."""
    unit_s, unit = clock(end_s)
    data, keys = [], []
    for key, label, points in lines:
        at_s, values = zip(*points, strict=True)
        color, dash = "$ink" if key[-1] == "0" else f"$c{key[-1]}", "4px,3px" if "dash" in key else "solid"
        look = {"line": {"color": color, "width": 2, "shape": "hv", "dash": dash}}
        hovered = f"%{{y}} {label.partition(':')[0]}<extra></extra>"
        data.append(scatter("lines", numbers(np.array(at_s) / unit_s), values, **look, hovertemplate=hovered))
        keys.append((key, label))
    axes = {"xaxis": axis(f"Time, {unit}", rangemode="tozero"), "yaxis": axis("Replicas", rangemode="tozero")}
    return Plot(name, figure(data, 260, **axes), title, "", keys)


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


@dataclass(frozen=True)
class ReplicaRow:
    """What one replica did: its requests are the same ones, unless it hands them off."""

    page_data: PageData
    replica: int
    computed: NDArray[np.int64]
    """Rows of the window's requests that it prefilled."""
    answered: NDArray[np.int64]
    """Rows of those that it decoded."""

    def series(self, name: str) -> Floats:
        """Return what is known of a time series."""
        return _known(self.page_data.series[name][self.replica])


COLUMNS: dict[str, Callable[[ReplicaRow], str]] = {
    "Requests": lambda row: count(max(len(row.computed), len(row.answered))),
    "TTFT p99": lambda row: seconds(_p99(row.page_data.ttft_s[row.computed])),
    "TPOT p99": lambda row: seconds(_p99(row.page_data.tpot_s[row.answered])),
    "Output tokens/s": lambda row: rate(_mean(row.series("output_tokens_per_s"))),
    "Busy": lambda row: share(_mean(row.series("busy_frac"))),
    "Mean batch": lambda row: rate(_mean(row.series("running"))),
    "Peak queue": lambda row: count(max(row.series("queue_len").tolist(), default=math.nan)),
    "KV peak": lambda row: share(row.page_data.kv_peak_frac[row.replica]),
    "Preemptions": lambda row: count(int(row.page_data.n_preemptions[row.answered].sum())),
}


def replicas(page_data: PageData) -> Chapter:
    """Return the section of the page."""
    n_replicas = len(page_data.replica_pool)
    if not n_replicas:
        return Chapter("replicas", "Replicas", [Paragraph("No replica ran.", "empty")])
    computed = np.where(page_data.prefill_replica >= 0, page_data.prefill_replica, page_data.replica)
    both = zip(_by(page_data, computed, n_replicas), _by(page_data, page_data.replica, n_replicas), strict=True)
    # Its pool, and when it joined and left.
    places = [", ".join(filter(None, each)) for each in zip(page_data.replica_pool, page_data.lives, strict=True)]
    rows = [
        Row(f"{replica}", [cell(ReplicaRow(page_data, replica, *of)) for cell in COLUMNS.values()], place)
        for replica, (of, place) in enumerate(zip(both, places, strict=True))
    ]
    note = "Window requests by the replica that prefilled or decoded them; utilization is over the whole run."
    return Chapter("replicas", "Replicas", [Table(("Replica", *COLUMNS), rows, len(rows) > MANY_REPLICAS)], note)


def _by(page_data: PageData, replica: NDArray[np.int32], n_replicas: int) -> list[NDArray[np.int64]]:
    """Return the window's requests of each replica, by a column that names one."""
    rows = np.flatnonzero(page_data.is_in_window & (replica >= 0))
    order = np.argsort(replica[rows].astype(np.uint16), kind="stable")  # fast: 16 bits make it a radix sort
    rows = rows[order]
    return np.split(rows, np.searchsorted(replica[rows], np.arange(1, n_replicas)))


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def _p99(values: Floats) -> float:
    known = _known(values)
    return float(np.quantile(known, 0.99)) if len(known) else math.nan


def _mean(known: Floats) -> float:
    return float(known.mean()) if len(known) else math.nan
