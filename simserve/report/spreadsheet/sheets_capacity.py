"""The sheet of capacities: what each load that was tried came to, latency and attainment against rate."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.metrics.result_folder import Written
from simserve.report.formats import SHORT
from simserve.report.spreadsheet.sheets import Chart, Column, Form, Series, Sheet, at, ms, tabulated

LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
LEVELS = ("p50", "p90", "p99")
BINDS_GAPS = "itl_s"
"""Its goal is of the largest gap of a request, so it is no limit of pooled percentiles."""

LOADS = {"rate": "Offered", "concurrency": "Clients", "replicas": "Replicas"}
"""The column that says how much was tried, by what was asked."""

ENDS = {"Holds": "value", "Holds, low": "low", "Holds, high": "high"}

NOTE = (
    "A row a load that was tried, means over runs with different seeds. Attained is the share of requests that met "
    "every SLO; where the queue only grows, latencies say how long the runs were rather than how good the cluster is."
)


def capacity_curve(studies: Sequence[Written]) -> Sheet:
    """A row a load, and two charts for each study."""
    tables = [_rows(study) for study in studies]
    columns, groups = tabulated(_columns(), [(study.label, rows) for study, rows in zip(studies, tables, strict=True)])
    charts = [
        chart
        for number, (study, rows) in enumerate(zip(studies, tables, strict=True))
        for chart in _charts(number, study, rows)
    ]
    return Sheet("Capacity curve", "Latency and attainment by load", NOTE, "Study", columns, groups, tuple(charts))


def _rows(study: Written) -> list[dict[str, Any]]:
    """Of loads, and of ways to split the GPUs, by head."""
    loads = [_cells(study.answer, point) for point in _loads(study.answer)]
    return loads + [_split_cells(each) for each in _splits(study)]


def _loads(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Everything tried, the lightest first: the search's points and those of its curve."""
    tried = {
        (point.get("split"), point["scale"]): point for key in ("points", "curve") for point in found.get(key) or []
    }
    asked = _asked(found)
    return sorted(tried.values(), key=lambda point: (str(point.get("split") or ""), point["scale"], asked))


def _asked(found: Mapping[str, Any]) -> str:
    return str(found.get("asked") or ("replicas" if "pool" in found else "rate"))


def _columns() -> list[Column]:
    """All that a row may have."""
    latencies: list[Column] = []
    for key in LATENCIES:
        name = SHORT[key]
        latencies += [Column(f"{name} {level}", "ms", "ms") for level in LEVELS]
        latencies += [Column(f"{name} limit", "ms", "ms"), Column(f"{name} within", "share", "share")]
    share: Form = "share"
    return [
        Column("Split", "text"),
        Column("Holds", "rate", "requests/s"),
        Column("Holds, low", "rate", "requests/s"),
        Column("Holds, high", "rate", "requests/s"),
        Column("Holds per GPU", "rate", "requests/s"),
        Column("Replicas", "count"),
        Column("Clients", "count"),
        Column("Offered", "rate", "requests/s"),
        Column("Offered per GPU", "rate", "requests/s"),
        Column("Served", "rate", "requests/s"),
        Column("Output", "rate", "tokens/s"),
        Column("Attained", share, "share"),
        Column("Attained, low", share, "share"),
        Column("Attained, high", share, "share"),
        Column("Goal", share, "share"),
        Column("Queue only grows", "text"),
        *latencies,
        Column("Runs", "count"),
    ]


def _cells(found: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """What a row says, by head."""
    asked, n_gpus = _asked(found), at(found, "answer", "fleet", "n_gpus")
    offered = at(point, "offered_per_s")
    cells: dict[str, Any] = {
        "Split": point.get("split"),
        "Replicas": at(point, "replicas"),
        "Clients": at(point, "scale") if asked == "concurrency" else None,
        "Offered": offered,
        "Offered per GPU": offered / n_gpus if offered is not None and n_gpus and asked == "rate" else None,
        "Served": at(point, "served_per_s"),
        "Output": at(point, "output_tokens_per_s"),
        "Attained": at(point, "attained_frac"),
        "Attained, low": at(point, "low_frac"),
        "Attained, high": at(point, "high_frac"),
        "Goal": at(found, "goal_frac"),
        "Queue only grows": "yes" if point.get("saturated") else "no",
        "Runs": at(point, "n_runs"),
    }
    for key in LATENCIES:
        name, figures = SHORT[key], point.get(key) or {}
        cells |= {f"{name} {level}": ms(at(figures, level)) for level in LEVELS}
        cells[f"{name} limit"] = ms(at(found, "slo", key))
        cells[f"{name} within"] = at(point, "by_slo", key)
    return cells


def _splits(study: Written) -> list[Mapping[str, Any]]:
    """Of GPUs between prefill and decode, and all of them together: what each way holds."""
    return [each for each in (*study.answer.get("splits", ()), study.answer.get("together")) if each is not None]


def _split_cells(split: Mapping[str, Any]) -> dict[str, Any]:
    holds = {name: at(split, "offered_per_s", end) for name, end in ENDS.items()}
    return {"Split": split["split"], **holds, "Holds per GPU": at(split, "per_gpu_s", "value")}


def _charts(group: int, study: Written, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """p99 latency with its limits, and attainment with its goal, against the load."""
    across = LOADS.get(_asked(study.answer), "Offered")
    several = len({row["Split"] for row in rows}) > 1  # curves in one group would be joined
    if len(rows) < 2 or several or _splits(study):
        return []
    latencies: list[Series] = []
    for key in LATENCIES:
        name = SHORT[key]
        if any(row[f"{name} p99"] for row in rows) and (key in study.answer["slo"] or key in ("ttft_s", "tpot_s")):
            latencies.append(Series(f"{name} p99"))
            if key != BINDS_GAPS and rows[0][f"{name} limit"] is not None:
                latencies.append(Series(f"{name} limit", is_limit=True))
    attained = (Series("Attained"), Series("Goal", is_limit=True))
    return [
        Chart(f"p99 latency: {study.label}", "line", group, across, tuple(latencies), "ms, logarithmic", is_log=True),
        Chart(f"Requests that meet every SLO: {study.label}", "line", group, across, attained, "share", most=1),
    ]
