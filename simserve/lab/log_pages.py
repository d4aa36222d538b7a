"""Pages of logs: replayed, each latency as measured and as predicted; and constants that were fitted to them."""

from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Any

import numpy as np

from simserve.lab.trust import Trust
from simserve.lab.validation_page import NOTE, Marker, against, dots
from simserve.report.chart_data import Floats, even_rows
from simserve.report.charts import Figure
from simserve.report.document import Cautions, Chapter, Document, Items, Paragraph, Plot, Row, SideBySide, Table, Titled
from simserve.report.formats import LATENCIES, SHORT, as_sentence, count, listed, plural, rate, seconds, share

MAX_DOTS = 2000
"""Dots of a chart; more requests are thinned out evenly."""

LEVELS = ("mean", "p50", "p90", "p95", "p99")
BY_RANK = "Quantile against quantile: the shortest measured with the shortest predicted, up to the longest"
CONSTANTS_HEAD = ("", "as shipped", "fitted", "95% CI")
UNITS = "Seconds; busy_compute_frac is a share, wait_frac more time; matrices, experts, attention: times as long."
CONSTANT_KEYS = ("shipped", "value", "low", "high")

GROUPS = {"by_load": "in flight on arrival", "by_prompt_tokens": "prompt tokens"}


def tell(result: Mapping[str, Any], trust: Trust) -> Document:
    """Return the decision and what `simserve validate LOG --scenario ... --json` prints."""
    log = result["log"]
    cautions = [f"{each[:1].upper()}{each[1:]}." for each in result["warnings"]]
    pairs = [_pair(result, name, of["n"], log["n_compared"]) for name, of in result["distributions"].items()]
    parts: list[Titled] = [
        *([Cautions(cautions)] if cautions else []),
        _distributions(result),
        Chapter("latencies", "Latencies", pairs, NOTE),
        *_errors(result),
        *_worst(result),
        Chapter("assumed", "Assumed", [Items(result["assumed"], "plain")]),
    ]
    compared = f"{log['n_compared']} of {log['n_requests']} requests of {log['path']} compared."
    tables = [
        _flat(part.title, block) for part in parts for block in getattr(part, "blocks", ()) if isinstance(block, Table)
    ]
    return Document(
        command="validate",
        name=result["scenario"]["name"],
        state=trust.state,
        title=trust.title,
        lead=trust.sentence,
        setup=(f"Predicted against measured, {plural(log['n_compared'], 'request')}. {compared}",),
        parts=parts,
        brief=(
            f"{trust.title}: {trust.sentence}",
            "\n".join((f"{compared} Assumptions:", *(f"  {each}" for each in result["assumed"]))),
            *tables,
        ),
        warnings=result["warnings"],
    )


def _flat(title: str, table: Table) -> Table:
    """Return a table with the smaller line below each name as a column, as a terminal shows it."""
    rows = [Row(row.name, (row.below, *row.cells)) for row in table.rows]
    return Table((title.lower(), "", *table.heads[1:]), rows)


def _drawn(measured: Floats, predicted: Floats, heads: Iterable[str]) -> Figure:
    """Return a dot for each pair, described by a head and both."""
    pairs = zip(heads, measured.tolist(), predicted.tolist(), strict=False)
    texts = [f"{head}measured {seconds(one)}, predicted {seconds(other)}" for head, one, other in pairs]
    marker: Marker = {"color": "$c1", "size": 5, "opacity": float(np.clip(12 / np.sqrt(max(len(texts), 1)), 0.25, 0.8))}
    return against(measured, predicted, [dots(measured, predicted, texts, marker)])


def _pair(result: Mapping[str, Any], name: str, n_requests: int, n_compared: int) -> SideBySide:
    """Return the quantiles of a latency against each other, and its requests where they are known one by one."""
    title, requests = LATENCIES[name], result["requests"]
    both = list(zip(requests[f"measured_{name}"], requests[f"predicted_{name}"], strict=True))
    rows = [row for row, sides in enumerate(both) if None not in sides]
    measured, predicted = (np.array([both[row][side] for row in rows]) for side in (0, 1))
    ranks = even_rows(len(rows), MAX_DOTS)
    by_rank, by_request = _drawn(np.sort(measured)[ranks], np.sort(predicted)[ranks], repeat("")), None
    if name in result["errors"]:
        lengths = ((requests["prompt_tokens"][row], requests["output_tokens"][row]) for row in np.array(rows)[ranks])
        heads = (f"{n_in:,} in, {n_out:,} out<br>" for n_in, n_out in lengths)
        by_request = _drawn(measured[ranks], predicted[ranks], heads)
    unpaired = "Arrivals were drawn, so no request of the log matches one of the run."
    n_without = n_compared - n_requests
    left_out = f" {plural(n_without, 'request')} without this latency left out."
    sample = f": an even sample of {MAX_DOTS:,} of {n_requests:,}." if n_requests > MAX_DOTS else "."
    more = sample + (left_out if n_without > 0 else "")
    dots_note = f"A dot per request{more}"
    return SideBySide(
        [
            Plot(f"rank-{name}", by_rank, f"{title}, by rank", BY_RANK + more),
            Plot(f"each-{name}", by_request, f"{title}, by request", dots_note, otherwise=unpaired),
        ]
    )


def _distributions(result: Mapping[str, Any]) -> Chapter:
    rows = []
    for name, of in result["distributions"].items():
        for side in ("measured", "predicted"):
            rows.append(Row(SHORT[name], [seconds(of[level][side]) for level in LEVELS], side))
        rows.append(Row(SHORT[name], [_signed(of[level]["error_frac"]) for level in LEVELS], "error"))
    whole = [
        Row(title, [*(form(sides[side]) for side in ("measured", "predicted")), _signed(sides["error_frac"])])
        for title, form, sides in (
            ("Makespan", seconds, result["makespan_s"]),
            ("Output tokens/s", rate, result["output_tokens_per_s"]),
        )
    ]
    tables = [Table(["", *LEVELS], rows), Table(["", "Measured", "Predicted", "Error"], whole)]
    note = "Over the requests that both the server and the simulator answered."
    return Chapter("distributions", "Distributions", tables, note)


def _errors(result: Mapping[str, Any]) -> list[Chapter]:
    """Return errors by request: all, by load, by prompt length."""
    rows = []
    for name, of in result["errors"].items():
        rows.append(Row(SHORT[name], _cells(of["overall"]), "all"))
        for key, what in GROUPS.items():
            for each in of[key]:
                ends = f"{each['lowest']:,.0f} to {each['highest']:,.0f} {what}"
                rows.append(Row(SHORT[name], _cells(each), ends))
    if not rows:
        return []
    note = "Relative to the measured values; bias is the mean of the signed errors; groups are quartiles."
    head = ["", "Requests", "Mean error", "Median", "p90", "Bias"]
    return [Chapter("errors", "Errors by request", [Table(head, rows)], note)]


def _cells(errors: Mapping[str, Any]) -> list[str]:
    sizes = (share(errors[key]) for key in ("mape_frac", "median_frac", "p90_frac"))
    return [str(errors["n"]), *sizes, _signed(errors["bias_frac"])]


def _worst(result: Mapping[str, Any]) -> list[Chapter]:
    rows = [
        Row(
            SHORT[name],
            [
                seconds(each["arrival_s"]),
                f"{each['prompt_tokens']:,}",
                f"{each['output_tokens']:,}",
                seconds(each["measured"]),
                seconds(each["predicted"]),
                f"{each['ratio']:.2f}",
            ],
            str(each["request"]),
        )
        for name, worst in result["worst"].items()
        for each in worst
    ]
    head = ["", "Sent at", "Prompt", "Output", "Measured", "Predicted", "Ratio"]
    return [Chapter("worst", "Furthest off", [Table(head, rows)])] if rows else []


def _signed(frac: float | None) -> str:
    return "–" if frac is None else f"{frac:+z.1%}"


def sentence(facts: Mapping[str, Any]) -> str:
    """Return what the fit came to."""
    n, what = len(facts["fitted"]), f"{count(facts['n_requests'])} {facts['unit']}"
    if not n:
        return f"The shipped constants stay: {what} show no other ones."
    errors = facts["errors"]
    moved = [f"{SHORT[name]} from {of['shipped_frac']:.1%} to {of['fitted_frac']:.1%}" for name, of in errors.items()]
    verb = "is" if n == 1 else "are"
    return (
        f"{plural(n, 'constant')} {verb} fitted to {what}. Errors of predicted means over {facts['parts']}, each left "
        f"out in turn: {listed(moved)}."
    )


def tell_fit(facts: Mapping[str, Any], use: str) -> Document:
    """Return all that a fit tells, from what `simserve calibrate --logs --json` prints; `use`: what to do with it."""
    stayed = Table(("as shipped", "why"), [Row(name, [why]) for name, why in facts["as_shipped"].items()])
    sizes = [(SHORT[name], each["shipped_frac"], each["fitted_frac"]) for name, each in facts["errors"].items()]
    errors = Table.of([("left out", "as shipped", "fitted"), *((name, f"{a:.1%}", f"{b:.1%}") for name, a, b in sizes)])
    rows = [(name, *(f"{each[key]:.4g}" for key in CONSTANT_KEYS)) for name, each in facts["fitted"].items()]
    constants = [Table.of([CONSTANTS_HEAD, *((*row[:3], "–".join(row[3:])) for row in rows)])] if rows else []
    note = f"Mean absolute error of predicted means; {facts['parts']} were left out in turn."
    cached = [*map(as_sentence, filter(None, [facts["cached"]]))]
    parts = (
        *(Chapter("constants", "Fitted constants", [table], UNITS) for table in constants),
        Chapter("shipped", "As shipped", [stayed]),
        Chapter("errors", "Errors of what was left out", [errors, *map(Paragraph, cached)], note),
        *([Chapter("warnings", "Warnings", [*map(Paragraph, facts["warnings"])])] if facts["warnings"] else []),
    )
    return Document(
        command="calibrate",
        name=facts["scenario"],
        state="",
        title=plural(len(facts["fitted"]), "fitted constant"),
        lead=sentence(facts),
        setup=(f"{facts['engine']} {facts['engine_version']} on {facts['gpu']}: {listed(facts['logs'])}",),
        parts=parts,
        brief=(sentence(facts), *constants, stayed, errors, *cached, use),
        warnings=facts["warnings"],
    )
