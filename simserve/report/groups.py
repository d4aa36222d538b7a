"""Classes and tenants on the page and the terminal: a row each, with the figures of the whole run."""

from simserve.report.document import Chapter, Row, Table
from simserve.report.formats import count, rate, seconds, share, slo_terms
from simserve.report.run_view import RunView

COLUMNS = ("Requests", "Met", "Goodput", "TTFT p50", "TTFT p99", "TPOT p99", "E2E p99", "Output tokens", "Preemptions")

DROPPED = ("Preemptions", "Output tokens", "TTFT p50", "E2E p99", "TPOT p99")
"""Columns that a narrow terminal leaves out first."""

MOST_TENANTS = 100
"""Rows of the page; summary.json has all."""

FEW_TENANTS = 10
"""Rows of the terminal."""

UNNAMED = "(none)"
"""Name for requests without a tenant."""


def classes(reader: RunView) -> list[Chapter]:
    """Return a row a class, with its targets; nothing without classes."""
    if not reader.classes:
        return []
    rows = [Row(name, _cells(own), slo_terms(own.slo) or "no targets") for name, own in reader.classes.items()]
    note = "Requests that arrived in the window, by class; each is measured by the targets of its class."
    return [Chapter("classes", "Classes", [Table(("Class", *COLUMNS), rows)], note)]


def tenants(reader: RunView) -> list[Chapter]:
    """Return a row a tenant; nothing without tenants."""
    result = reader.tenants
    if not result:
        return []
    rows = [Row(name or UNNAMED, _cells(own)) for name, own in list(result.items())[:MOST_TENANTS]]
    more = f" The first {MOST_TENANTS} of {len(result)}." if len(result) > MOST_TENANTS else ""
    note = f"Requests that arrived in the window, by tenant.{more}"
    return [Chapter("tenants", "Tenants", [Table(("Tenant", *COLUMNS), rows)], note)]


def versions(reader: RunView) -> list[Chapter]:
    """Return a row a version; nothing without a roll-out."""
    rows = [Row(name, _cells(own)) for name, own in reader.groups(reader.summary.versions).items()]
    note = "Requests that arrived while the new version and another served, by version."
    return [Chapter("versions", "Versions", [Table(("Version", *COLUMNS), rows)], note)] if rows else []


def group_tables(reader: RunView) -> list[Table]:
    """Return the classes as a terminal shows them, and the tenants if they are few."""
    tenants, versions = reader.tenants, reader.groups(reader.summary.versions)
    groups = (
        ("Class", reader.classes),
        ("Tenant", tenants if len(tenants) <= FEW_TENANTS else {}),
        ("Version", versions),
    )
    return [
        Table((title, *COLUMNS), [Row(name or UNNAMED, _cells(own)) for name, own in result.items()], dropped=DROPPED)
        for title, result in groups
        if result
    ]


def _cells(own: RunView) -> list[str]:
    latencies = (("ttft_s", "p50"), ("ttft_s", "p99"), ("tpot_s", "p99"), ("e2e_s", "p99"))
    return [
        count(own.n("arrived")),
        share(own.attainment),
        f"{rate(own.number('goodput.per_s'))}/s",
        *(seconds(own.number(f"{key}.{level}")) for key, level in latencies),
        f"{rate(own.number('output_tokens_per_s'))}/s",
        count(own.number("preemptions.n")),
    ]
