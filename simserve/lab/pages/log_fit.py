"""The page of constants that were fitted to logs: what moved, what stayed, and the errors of what was left out."""

from collections.abc import Mapping
from typing import Any

from simserve.report.document import document
from simserve.report.formats import SHORT, count, listed, plural
from simserve.report.sections import prose, section, table, text

HEAD = ("", "As shipped", "Fitted", "95% CI")
ERRORS_HEAD = ("", "As shipped", "Fitted")


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
    """Return a row for each fitted constant, as in HEAD."""
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


def render(facts: Mapping[str, Any]) -> str:
    """Return the page as HTML, from what `simserve calibrate --logs --json` prints."""
    server = f"{facts['engine']} {facts['engine_version']} on {facts['gpu']}: {listed(facts['logs'])}"
    head = (
        f'<header><p class="eyebrow">simserve · calibrate</p><h1>{text(facts["scenario"])}</h1>'
        f'<p class="lead">{prose(sentence(facts))}</p><p>{prose(server)}</p></header>'
    )
    fitted = table(HEAD, [(text(name), cells) for name, *cells in constant_rows(facts)])
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
