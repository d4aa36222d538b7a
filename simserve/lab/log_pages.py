"""The pages of logs: replayed, each latency as measured and as predicted; and constants that were fitted to them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simserve.lab.validation_page import NOTE, Marker, against, dots
from simserve.report.chart_data import Floats
from simserve.report.charts import Figure
from simserve.report.document import document
from simserve.report.formats import LATENCIES, SHORT, count, listed, plural, rate, seconds, share
from simserve.report.sections import card, prose, section, table, text

MAX_DOTS = 2000
"""Dots of a chart; more requests are thinned out evenly."""

LEVELS = ("mean", "p50", "p90", "p95", "p99")
BY_RANK = "Quantile against quantile: the shortest measured with the shortest predicted, up to the longest"
GROUPS = {"by_load": "in flight on arrival", "by_prompt_tokens": "prompt tokens"}

CONSTANTS_HEAD = ("", "As shipped", "Fitted", "95% CI")
ERRORS_HEAD = ("", "As shipped", "Fitted")


def render_replay(result: Mapping[str, Any]) -> str:
    """Return the page as HTML, from what `simserve validate LOG --scenario ... --json` prints."""
    log = result["log"]
    figures = _figures(result)
    title = f"Predicted against measured, {plural(log['n_compared'], 'request')}"
    head = (
        f'<header><p class="eyebrow">simserve · validation of {text(result["scenario"]["name"])}</p>'
        f'<h1>{text(title)}</h1><p class="lead">{prose(_lead(result))}</p></header>'
    )
    cautions = "".join(f"<li>{prose(_sentence(each))}</li>" for each in result["warnings"])
    warning_section = (
        f'<section class="trust" id="trust"><h2>What to trust</h2><ul>{cautions}</ul></section>' if cautions else ""
    )
    charts = "".join(_pair(name, of["n"], log["n_compared"], figures) for name, of in result["distributions"].items())
    body = head + warning_section + _distributions(result) + section("latencies", "Latencies", NOTE, charts)
    return document("Validation · simserve", body + _errors(result) + _worst(result) + _assumed(result), figures)


def _lead(result: Mapping[str, Any]) -> str:
    log, speed = result["log"], result["output_tokens_per_s"]
    off = ""
    if speed["error_frac"] is not None:
        off = f" Measured: {rate(speed['measured'])} output tokens/s; predicted: {rate(speed['predicted'])}."
    return f"The requests of {log['path']}, replayed.{off}"


def _figures(result: Mapping[str, Any]) -> dict[str, Figure]:
    figures = {}
    for name in result["distributions"]:
        rows = _rows(result["requests"], name)
        measured, predicted = (_column(result, f"{side}_{name}", rows) for side in ("measured", "predicted"))
        ranks = _thinned(range(len(rows)))
        figures[f"rank-{name}"] = _by_rank(np.sort(measured)[ranks], np.sort(predicted)[ranks])
        if name in result["errors"]:
            figures[f"each-{name}"] = _each(result, name, _thinned(rows))
    return figures


def _rows(requests: Mapping[str, Any], name: str) -> list[int]:
    """Return requests that have the latency on both sides."""
    both = zip(requests[f"measured_{name}"], requests[f"predicted_{name}"], strict=True)
    return [row for row, sides in enumerate(both) if None not in sides]


def _thinned(rows: Sequence[int]) -> list[int]:
    """Return at most MAX_DOTS of the rows, evenly spaced, first and last included."""
    places = np.linspace(0, len(rows) - 1, min(len(rows), MAX_DOTS))
    return [rows[place] for place in np.rint(places).astype(np.int64).tolist()]


def _column(result: Mapping[str, Any], name: str, rows: Sequence[int]) -> Floats:
    column = result["requests"][name]
    return np.array([column[row] for row in rows])


def _by_rank(measured: Floats, predicted: Floats) -> Figure:
    texts = [
        f"measured {seconds(one)}, predicted {seconds(other)}" for one, other in zip(measured, predicted, strict=True)
    ]
    return against(measured, predicted, [dots(measured, predicted, texts, _marker(len(texts)))])


def _each(result: Mapping[str, Any], name: str, rows: Sequence[int]) -> Figure:
    requests = result["requests"]
    measured, predicted = (_column(result, f"{side}_{name}", rows) for side in ("measured", "predicted"))
    texts = [
        f"{requests['prompt_tokens'][row]:,} in, {requests['output_tokens'][row]:,} out<br>"
        f"measured {seconds(one)}, predicted {seconds(other)}"
        for row, one, other in zip(rows, measured.tolist(), predicted.tolist(), strict=True)
    ]
    return against(measured, predicted, [dots(measured, predicted, texts, _marker(len(texts)))])


def _marker(n_dots: int) -> Marker:
    return {"color": "$c1", "size": 5, "opacity": float(np.clip(12 / np.sqrt(max(n_dots, 1)), 0.25, 0.8))}


def _pair(name: str, n_requests: int, n_compared: int, figures: Mapping[str, Figure]) -> str:
    title = LATENCIES[name]
    unpaired = "Arrivals were drawn, so no request of the log matches one of the run."
    n_without = n_compared - n_requests
    left_out = f" {plural(n_without, 'request')} without this latency left out."
    sample = f": an even sample of {MAX_DOTS:,} of {n_requests:,}." if n_requests > MAX_DOTS else "."
    more = sample + (left_out if n_without > 0 else "")
    ranks = card(f"rank-{name}", figures, f"{title}, by rank", BY_RANK + more, (), "")
    each = card(f"each-{name}", figures, f"{title}, by request", f"A dot per request{more}", (), unpaired)
    return f'<div class="pair">{ranks}{each}</div>'


def _distributions(result: Mapping[str, Any]) -> str:
    rows = []
    for name, of in result["distributions"].items():
        for side in ("measured", "predicted"):
            rows.append((f"{SHORT[name]}<small>{side}</small>", [seconds(of[level][side]) for level in LEVELS]))
        rows.append((f"{SHORT[name]}<small>error</small>", [_signed(of[level]["error_frac"]) for level in LEVELS]))
    note = "Over the requests that both the server and the simulator answered."
    return section("distributions", "Distributions", note, table(["", *LEVELS], rows))


def _errors(result: Mapping[str, Any]) -> str:
    """Return errors by request: all, by load, by prompt length."""
    rows = []
    for name, of in result["errors"].items():
        rows.append((f"{SHORT[name]}<small>all</small>", _cells(of["overall"])))
        for key, what in GROUPS.items():
            for each in of[key]:
                ends = f"{each['lowest']:,.0f} to {each['highest']:,.0f} {what}"
                rows.append((f"{SHORT[name]}<small>{text(ends)}</small>", _cells(each)))
    if not rows:
        return ""
    note = "Relative to the measured values; bias is the mean of the signed errors; groups are quartiles."
    head = ["", "Requests", "Mean error", "Median", "p90", "Bias"]
    return section("errors", "Errors by request", note, table(head, rows))


def _cells(errors: Mapping[str, Any]) -> list[str]:
    sizes = (share(errors[key]) for key in ("mape_frac", "median_frac", "p90_frac"))
    return [str(errors["n"]), *sizes, _signed(errors["bias_frac"])]


def _worst(result: Mapping[str, Any]) -> str:
    rows = [
        (
            f"{SHORT[name]}<small>{text(each['request'])}</small>",
            [
                seconds(each["arrival_s"]),
                f"{each['prompt_tokens']:,}",
                f"{each['output_tokens']:,}",
                seconds(each["measured"]),
                seconds(each["predicted"]),
                f"{each['ratio']:.2f}",
            ],
        )
        for name, worst in result["worst"].items()
        for each in worst
    ]
    head = ["", "Sent at", "Prompt", "Output", "Measured", "Predicted", "Ratio"]
    return section("worst", "Furthest off", "", table(head, rows)) if rows else ""


def _assumed(result: Mapping[str, Any]) -> str:
    items = "".join(f"<li>{prose(each)}</li>" for each in result["assumed"])
    return section("assumed", "Assumed", "", f"<ul>{items}</ul>")


def _signed(frac: float | None) -> str:
    return "–" if frac is None else f"{frac:+z.1%}"


def _sentence(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:] + "."


def sentence(facts: Mapping[str, Any]) -> str:
    """Return what the fit came to."""
    n, what = len(facts["fitted"]), f"{count(facts['n_requests'])} requests"
    if not n:
        return f"The shipped constants stay: {what} show no other ones."
    errors = facts["errors"]
    moved = [
        f"{SHORT[name]} from {each['shipped_frac']:.1%} to {each['fitted_frac']:.1%}" for name, each in errors.items()
    ]
    verb = "is" if n == 1 else "are"
    return (
        f"{plural(n, 'constant')} {verb} fitted to {what}. Errors of predicted means over {facts['parts']}, each left "
        f"out in turn: {listed(moved)}."
    )


def constant_rows(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each fitted constant, as in CONSTANTS_HEAD."""
    return [
        (name, number(each["shipped"]), number(each["value"]), f"{number(each['low'])}–{number(each['high'])}")
        for name, each in facts["fitted"].items()
    ]


def error_rows(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each latency, as in ERRORS_HEAD."""
    return [
        (SHORT[name], f"{each['shipped_frac']:.1%}", f"{each['fitted_frac']:.1%}")
        for name, each in facts["errors"].items()
    ]


def number(value: float) -> str:
    """Return four significant digits: `0.002501`, `8.07e-05`."""
    return f"{value:.4g}"


def render_fit(facts: Mapping[str, Any]) -> str:
    """Return the page as HTML, from what `simserve calibrate --logs --json` prints."""
    server = f"{facts['engine']} {facts['engine_version']} on {facts['gpu']}: {listed(facts['logs'])}"
    head = (
        f'<header><p class="eyebrow">simserve · calibrate</p><h1>{text(facts["scenario"])}</h1>'
        f'<p class="lead">{prose(sentence(facts))}</p><p>{prose(server)}</p></header>'
    )
    fitted = table(CONSTANTS_HEAD, [(text(name), cells) for name, *cells in constant_rows(facts)])
    stayed = table(["", "Why"], [(text(name), [why]) for name, why in facts["as_shipped"].items()])
    errors = table(ERRORS_HEAD, [(text(name), cells) for name, *cells in error_rows(facts)])
    note = f"Mean absolute error of predicted means; {facts['parts']} were left out in turn."
    notes = "".join(f"<p>{prose(each)}</p>" for each in facts["warnings"])
    body = (
        (
            section("constants", "Fitted constants", "Seconds; busy_compute_frac is a share.", fitted)
            if facts["fitted"]
            else ""
        )
        + section("shipped", "As shipped", "", stayed)
        + section("errors", "Errors of what was left out", note, errors)
        + (section("warnings", "Warnings", "", notes) if notes else "")
    )
    return document("Calibration · simserve", head + body, {})
