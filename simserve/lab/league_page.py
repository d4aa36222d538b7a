"""The page of the league of public data sets, and its tables, which the terminal prints too."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simserve.lab.validation_page import NOTE as LINE_NOTE
from simserve.lab.validation_page import against, dots
from simserve.report.charts import Figure, text
from simserve.report.document import Cautions, Chapter, Document, Key, Plot, Row, SideBySide, Table, Titled
from simserve.report.formats import NONE, plural, seconds, share
from simserve.report.html import page

METRICS = {"tpot": "TPOT", "ttft": "TTFT", "e2e": "E2E"}

NOTE = (
    "Errors are mean absolute errors of mean latencies; in 90%: measured means inside their 90% prediction interval; "
    "TPOT ±: median of half its width."
)

FIGURES_HEAD = (*METRICS.values(), *(f"{name} in 90%" for name in METRICS.values()), "TPOT ±")
SUMMARY_HEAD = ("in-sample", "runs", *FIGURES_HEAD)
SETS_HEAD = ("data set", "engine", "GPU", "model", "runs", *FIGURES_HEAD, "in-sample", "peer")
PEERS_HEAD = ("runs", "tool", *METRICS.values(), "compared with")

MANY_VERSIONS = 2

MARKS = {"yes": ("$c1", "circle"), "partly": ("$c2", "diamond"), "no": ("$c3", "square")}
"""Color and symbol by what was fitted to a set."""


def lead(facts: Mapping[str, Any]) -> str:
    """Return the answer: the errors of runs that nothing was fitted to, and of those that few constants were."""
    answers = [
        _answer(f"{what} ({plural(figures['n_runs'], 'run')})", figures)
        for what, figures in (("Not in-sample", facts["not_fitted"]), ("Partly in-sample", facts["partly_fitted"]))
        if figures["n_runs"]
    ]
    return " ".join(answers) or f"{plural(len(facts['runs']), 'run')}; constants were fitted to all of these sets."


def _answer(what: str, figures: Mapping[str, Any]) -> str:
    cells, n = figure_cells(figures), len(METRICS)
    errors, within = (
        ", ".join(f"{title} {cell}" for title, cell in zip(METRICS.values(), part, strict=True))
        for part in (cells[:n], cells[n : 2 * n])
    )
    return f"{what}: errors {errors}. Intervals hold: {within}."


def set_rows(facts: Mapping[str, Any]) -> list[Sequence[str]]:
    """Return the cells of each set."""
    rows: list[Sequence[str]] = []
    for each in facts["sets"]:
        n_runs, n_refused, versions = each["n_runs"], each["n_refused"], each["versions"]
        listed = ", ".join(versions) if len(versions) <= MANY_VERSIONS else f"{versions[0]} to {versions[-1]}"
        about = each["file"].removesuffix(".csv"), f"{each['engine']} {listed}".strip(), each["gpu"], each["model"]
        n = f"{n_runs}" if not n_refused else f"{n_runs - n_refused} of {n_runs}"
        # the peer with the least error of TPOT, at the upper end of a range
        best = min(each["published"], key=lambda peer: peer["errors_frac"]["tpot"][-1], default=None)
        peer = "" if best is None else f"{best['name']}: {' / '.join(_published(best, name) for name in METRICS)}"
        rows.append((*about, n, *figure_cells(each), each["in_sample"], peer))
    return rows


def figure_cells(figures: Any) -> Sequence[str]:
    """Return the cells of FIGURES_HEAD."""
    errors, within = (
        [_error(figures, name) for name in METRICS],
        [share(figures["within_frac"][name]) for name in METRICS],
    )
    return *errors, *within, share(figures["width_frac"]["tpot"])


def peer_rows(facts: Mapping[str, Any]) -> list[Sequence[str]]:
    """Return the cells of our errors and those of peers, by the runs that they are about."""
    rows: list[Sequence[str]] = []
    for each in facts["peers"]:
        seen = {"yes": "in-sample", "partly": "partly in-sample", "no": "not fitted"}[each["in_sample"]]
        ours = f"{plural(each['n_runs'] - each['n_refused'], 'run')} of the folder, {seen}"
        rows.append((each["runs"], "simserve", *(_error(each, name) for name in METRICS), ours))
        rows += [
            ("", peer["name"], *(_published(peer, name) for name in METRICS), peer["runs"])
            for peer in each["published"]
        ]
    return rows


def _error(figures: Mapping[str, Any], name: str) -> str:
    errors = figures["errors"][name]
    return NONE if errors is None else f"{errors['mape_frac']:.1%}"


def _published(peer: Mapping[str, Any], name: str) -> str:
    ends = [100 * end for end in peer["errors_frac"].get(name, ())]
    shown = [f"{end:,.0f}" if end >= 100 else f"{end:.3g}" for end in ends]
    return f"{'–'.join(dict.fromkeys(shown))}%" if shown else NONE


def render(facts: Mapping[str, Any], *, charts_alone: bool = False) -> str:
    """Return the page as HTML, from what `simserve lab league --json` prints, or its charts alone, for a picture."""
    n_sets = plural(len(facts["sets"]), "public data set")
    figures = {name: drawn for name in METRICS if (drawn := _scatter(facts["runs"], name)) is not None}
    keys: list[Key] = [(f"dot k{place}", f"in-sample: {name}") for place, name in enumerate(MARKS, 1)]
    charts = Chapter(
        "runs",
        "Runs",
        [SideBySide([Plot(name, drawn, METRICS[name], LINE_NOTE, keys) for name, drawn in figures.items()])],
    )
    sets = Table(["", *SETS_HEAD[1:]], [Row(row[0], row[1:]) for row in set_rows(facts)])
    peers = Table(["", *PEERS_HEAD[1:]], [Row(row[0], row[1:]) for row in peer_rows(facts)])
    parts: list[Titled] = [
        Chapter("sets", "Data sets", [sets], NOTE),
        *([Chapter("peers", "Peers", [peers], "Errors as published.")] if facts["peers"] else []),
        charts,
        _sources(facts),
    ]
    title, parts = f"Errors on {n_sets}", [charts] if charts_alone else parts
    return page(Document(command="lab", name="league", state="", title=title, lead=lead(facts), parts=parts))


def _sources(facts: Mapping[str, Any]) -> Cautions:
    published = [(each["runs"], peer) for each in facts["peers"] for peer in each["published"]]
    facts_of = dict.fromkeys(f"{each['file']}, {each['engine']}: {each['why']}." for each in facts["sets"])
    facts_of |= dict.fromkeys(f"{peer['name']}, {runs}: {peer['source']}." for runs, peer in published)
    facts_of |= dict.fromkeys(f"Skipped: {each}." for each in facts["skipped"])
    return Cautions(list(facts_of))


def _scatter(runs: Sequence[Mapping[str, Any]], name: str) -> Figure | None:
    """Return predicted (up) against measured (right); None without runs."""
    known = [run for run in runs if name in run and run[name]["predicted_s"] is not None]
    if not known:
        return None
    sides = [np.array([run[name][f"{side}_s"] for run in known]) for side in ("measured", "predicted")]
    return against(sides[0], sides[1], [_dots(known, name, seen) for seen in MARKS])


def _dots(runs: Sequence[Mapping[str, Any]], name: str, in_sample: str) -> dict[str, Any]:
    mine = [run for run in runs if run["in_sample"] == in_sample]
    color, symbol = MARKS[in_sample]
    texts = [
        f"{text(run['label'])}<br>measured {seconds(run[name]['measured_s'])}, "
        f"predicted {seconds(run[name]['predicted_s'])}"
        for run in mine
    ]
    measured, predicted = ([run[name][f"{side}_s"] for run in mine] for side in ("measured", "predicted"))
    return dots(measured, predicted, texts, {"color": color, "symbol": symbol, "size": 7, "opacity": 0.75})
