"""Classes and tenants on the page and the terminal: a row each, in the terms in which the run is told as a whole."""

from collections.abc import Mapping
from typing import Any

from simserve.report.formats import count, rate, seconds, share, slo_terms
from simserve.report.sections import section, table, text
from simserve.report.summary_reader import SummaryReader

COLUMNS = ("Requests", "Met", "Goodput", "TTFT p50", "TTFT p99", "TPOT p99", "E2E p99", "Output tokens", "Preemptions")

MOST_TENANTS = 100
"""A page with more rows is not read; summary.json has all."""

FEW_TENANTS = 10
"""As many as a terminal shows."""

UNNAMED = "(none)"
"""The tenant of requests that name none."""


def classes(reader: SummaryReader) -> str:
    """A row a class, with what it must meet; nothing without classes."""
    if not reader.classes:
        return ""
    rows = [
        (f"{text(name)}<small>{text(slo_terms(own.slo) or 'no targets')}</small>", _cells(own))
        for name, own in reader.classes.items()
    ]
    note = "Requests that arrived in the window, by class; each is held against the targets of its own class."
    return section("classes", "Classes", note, table(("Class", *COLUMNS), rows))


def tenants(reader: SummaryReader) -> str:
    """A row a tenant; nothing without."""
    result = reader.tenants
    if not result:
        return ""
    rows = [(text(name or UNNAMED), _cells(own)) for name, own in list(result.items())[:MOST_TENANTS]]
    more = f" The first {MOST_TENANTS} of {len(result)}." if len(result) > MOST_TENANTS else ""
    note = f"Requests that arrived in the window, by who sent them.{more}"
    return section("tenants", "Tenants", note, table(("Tenant", *COLUMNS), rows))


def group_tables(summary: Mapping[str, Any]) -> list[list[tuple[str, ...]]]:
    """The classes as text, and the tenants if they are few; the first row of each names the columns."""
    reader = SummaryReader(summary)
    groups = {"Class": reader.classes, "Tenant": reader.tenants if len(reader.tenants) <= FEW_TENANTS else {}}
    return [
        [(title, *COLUMNS), *((name or UNNAMED, *_cells(own)) for name, own in result.items())]
        for title, result in groups.items()
        if result
    ]


def _cells(own: SummaryReader) -> list[str]:
    latencies = (("ttft_s", "p50"), ("ttft_s", "p99"), ("tpot_s", "p99"), ("e2e_s", "p99"))
    return [
        count(own.n("arrived")),
        share(own.attainment),
        f"{rate(own.number('goodput', 'per_s'))}/s",
        *(seconds(own.percentile(key, level)) for key, level in latencies),
        f"{rate(own.number('output_tokens_per_s'))}/s",
        count(own.number("preemptions", "n")),
    ]
