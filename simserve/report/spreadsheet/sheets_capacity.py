"""The sheet of capacities: latency and attainment at each load that was run."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.metrics.result_folder import ResultFolder
from simserve.report.formats import SHORT
from simserve.report.spreadsheet.sheets import Chart, ChartSeries, Form, Sheet, SheetColumn, at, ms, tabulated

LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
LEVELS = ("p50", "p90", "p99")
BINDS_GAPS = "itl_s"
"""SLO of the largest gap of a request, which is no limit of pooled percentiles."""

LOADS = {"rate": "Offered", "concurrency": "Clients", "replicas": "Replicas"}
"""Column of the load, by the question."""

ENDS = {"Holds": "value", "Holds, low": "low", "Holds, high": "high"}

NOTE = (
    "A row a load that was tried, means over runs with different seeds. Attained is the share of requests that met "
    "every SLO; where the queue only grows, latencies say how long the runs were rather than how good the cluster is."
)


def capacity_curve(studies: Sequence[ResultFolder]) -> Sheet:
    """Return a row a load, and two charts for each study."""
    tables = [_rows(study) for study in studies]
    columns, groups = tabulated(_columns(), [(study.label, rows) for study, rows in zip(studies, tables, strict=True)])
    charts = [
        chart
        for number, (study, rows) in enumerate(zip(studies, tables, strict=True))
        for chart in _charts(number, study, rows)
    ]
    return Sheet("Capacity curve", "Latency and attainment by load", NOTE, "Study", columns, groups, tuple(charts))


def _rows(study: ResultFolder) -> list[dict[str, Any]]:
    """Return rows of loads and of ways to split the GPUs, by head."""
    loads = [_cells(study.answer, point) for point in _loads(study.answer)]
    return loads + [_split_cells(each) for each in _splits(study)]


def _loads(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return all points of the search and of its curve, the lightest first."""
    probed = {
        (point.get("split"), point["scale"]): point for key in ("points", "curve") for point in result.get(key) or []
    }
    requested = _requested(result)
    return sorted(probed.values(), key=lambda point: (str(point.get("split") or ""), point["scale"], requested))


def _requested(result: Mapping[str, Any]) -> str:
    return str(result.get("asked") or ("replicas" if "pool" in result else "rate"))


def _columns() -> list[SheetColumn]:
    """Return all columns that a row may have."""
    latencies: list[SheetColumn] = []
    for key in LATENCIES:
        name = SHORT[key]
        latencies += [SheetColumn(f"{name} {level}", "ms", "ms") for level in LEVELS]
        latencies += [SheetColumn(f"{name} limit", "ms", "ms"), SheetColumn(f"{name} within", "share", "share")]
    share: Form = "share"
    return [
        SheetColumn("Split", "text"),
        SheetColumn("Holds", "rate", "requests/s"),
        SheetColumn("Holds, low", "rate", "requests/s"),
        SheetColumn("Holds, high", "rate", "requests/s"),
        SheetColumn("Holds per GPU", "rate", "requests/s"),
        SheetColumn("Replicas", "count"),
        SheetColumn("Clients", "count"),
        SheetColumn("Offered", "rate", "requests/s"),
        SheetColumn("Offered per GPU", "rate", "requests/s"),
        SheetColumn("Served", "rate", "requests/s"),
        SheetColumn("Output", "rate", "tokens/s"),
        SheetColumn("Attained", share, "share"),
        SheetColumn("Attained, low", share, "share"),
        SheetColumn("Attained, high", share, "share"),
        SheetColumn("Goal", share, "share"),
        SheetColumn("Queue only grows", "text"),
        *latencies,
        SheetColumn("Runs", "count"),
    ]


def _cells(result: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row by head."""
    requested, n_gpus = _requested(result), at(result, "answer", "fleet", "n_gpus")
    offered = at(point, "offered_per_s")
    cells: dict[str, Any] = {
        "Split": point.get("split"),
        "Replicas": at(point, "replicas"),
        "Clients": at(point, "scale") if requested == "concurrency" else None,
        "Offered": offered,
        "Offered per GPU": offered / n_gpus if offered is not None and n_gpus and requested == "rate" else None,
        "Served": at(point, "served_per_s"),
        "Output": at(point, "output_tokens_per_s"),
        "Attained": at(point, "attained_frac"),
        "Attained, low": at(point, "low_frac"),
        "Attained, high": at(point, "high_frac"),
        "Goal": at(result, "goal_frac"),
        "Queue only grows": "yes" if point.get("saturated") else "no",
        "Runs": at(point, "n_runs"),
    }
    for key in LATENCIES:
        name, figures = SHORT[key], point.get(key) or {}
        cells |= {f"{name} {level}": ms(at(figures, level)) for level in LEVELS}
        cells[f"{name} limit"] = ms(at(result, "slo", key))
        cells[f"{name} within"] = at(point, "by_slo", key)
    return cells


def _splits(study: ResultFolder) -> list[Mapping[str, Any]]:
    """Return what each split of the GPUs between prefill and decode holds, and all of them together."""
    return [each for each in (*study.answer.get("splits", ()), study.answer.get("together")) if each is not None]


def _split_cells(split: Mapping[str, Any]) -> dict[str, Any]:
    holds = {name: at(split, "offered_per_s", end) for name, end in ENDS.items()}
    return {"Split": split["split"], **holds, "Holds per GPU": at(split, "per_gpu_s", "value")}


def _charts(group: int, study: ResultFolder, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Return charts of p99 latency with its limits, and of attainment with its goal, against the load."""
    across = LOADS.get(_requested(study.answer), "Offered")
    several = len({row["Split"] for row in rows}) > 1  # curves in one group would be joined
    if len(rows) < 2 or several or _splits(study):
        return []
    latencies: list[ChartSeries] = []
    for key in LATENCIES:
        name = SHORT[key]
        if any(row[f"{name} p99"] for row in rows) and (key in study.answer["slo"] or key in ("ttft_s", "tpot_s")):
            latencies.append(ChartSeries(f"{name} p99"))
            if key != BINDS_GAPS and rows[0][f"{name} limit"] is not None:
                latencies.append(ChartSeries(f"{name} limit", is_limit=True))
    attained = (ChartSeries("Attained"), ChartSeries("Goal", is_limit=True))
    return [
        Chart(f"p99 latency: {study.label}", "line", group, across, tuple(latencies), "ms, logarithmic", is_log=True),
        Chart(f"Requests that meet every SLO: {study.label}", "line", group, across, attained, "share", most=1),
    ]
