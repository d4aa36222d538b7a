"""The sheet of capacities: latency and attainment at each load that was run."""

from collections.abc import Sequence

from simserve.metrics.answers.capacity import CapacityAnswer, ReplicasCapacity
from simserve.metrics.answers.capacity_found import SplitRate
from simserve.metrics.answers.capacity_loads import LATENCIES, ProbedLoad
from simserve.metrics.result_folder import ResultFolder
from simserve.report.capacity.load_curve import Searched
from simserve.report.formats import SHORT
from simserve.report.spreadsheet.sheets import (
    Cells,
    Chart,
    ChartSeries,
    Sheet,
    SheetColumn,
    cells_of,
    columns_of,
    ms,
    tabulated,
)

LEVELS = ("p50", "p90", "p99")
BINDS_GAPS = "itl_s"
"""SLO of the largest gap of a request, which is no limit of pooled percentiles."""

LOADS = {"rate": "Offered", "concurrency": "Clients", "replicas": "Replicas"}
"""Column of the load, by the question."""

MORE = {
    "Split": (
        SheetColumn("Holds", "rate", "requests/s"),
        SheetColumn("Holds, low", "rate", "requests/s"),
        SheetColumn("Holds, high", "rate", "requests/s"),
        SheetColumn("Holds per GPU", "rate", "requests/s"),
    ),
    "Replicas": (SheetColumn("Clients", "count"),),
    "Offered": (SheetColumn("Offered per GPU", "rate", "requests/s"),),
    "Attained, high": (SheetColumn("Goal", "share", "share"),),
    "Queue only grows": tuple(
        column
        for name in (SHORT[key] for key in LATENCIES)
        for column in (
            *(SheetColumn(f"{name} {level}", "ms", "ms") for level in LEVELS),
            SheetColumn(f"{name} limit", "ms", "ms"),
            SheetColumn(f"{name} within", "share", "share"),
        )
    ),
}
"""Columns that are no field of a load, by the head that they follow."""

COLUMNS = sorted(
    (each for own in columns_of(ProbedLoad).values() for each in (own, *MORE.get(own.head, ()))),
    key=lambda column: column.head == "Runs",  # last
)

NOTE = (
    "A row a load that was tried, means over runs with different seeds. Attained is the share of requests that met "
    "every SLO; where the queue only grows, latencies say how long the runs were rather than how good the cluster is."
)


def capacity_curve(studies: Sequence[ResultFolder]) -> Sheet:
    """Return a row a load, and two charts for each study."""
    tables = [_rows(study) for study in studies]
    columns, groups = tabulated(COLUMNS, [(study.label, rows) for study, rows in zip(studies, tables, strict=True)])
    charts = [
        chart
        for number, (study, rows) in enumerate(zip(studies, tables, strict=True))
        for chart in _charts(number, study, rows)
    ]
    return Sheet("Capacity curve", "Latency and attainment by load", NOTE, "Study", columns, groups, tuple(charts))


def _rows(study: ResultFolder) -> list[Cells]:
    """Return rows of loads, or of ways to split the GPUs between prefill and decode and of all of them together."""
    result: CapacityAnswer = study.answer
    if result.question != "ratio":
        return [_cells(result, point) for point in _loads(result)]
    return [_split_cells(each) for each in (*result.splits, *([] if result.together is None else [result.together]))]


def _loads(result: Searched | ReplicasCapacity) -> list[ProbedLoad]:
    """Return all points of the search and of its curve, the lightest first."""
    points = result.points if result.question == "replicas" else [*result.points, *result.curve]
    probed = {(point.split or "", point.scale): point for point in points}
    return [probed[key] for key in sorted(probed)]


def _cells(result: CapacityAnswer, point: ProbedLoad) -> Cells:
    """Return a row by head."""
    n_gpus = result.answer.fleet.n_gpus if result.question == "rate" and result.answer else None
    cells = cells_of(point) | {
        "Clients": point.scale if result.question == "concurrency" else None,
        "Offered per GPU": point.offered_per_s / n_gpus if n_gpus else None,
        "Goal": result.goal_frac,
    }
    for key in LATENCIES:
        name = SHORT[key]
        cells |= {f"{name} {level}": ms(point.latency_s(key, level)) for level in LEVELS}
        cells |= {f"{name} limit": ms(result.slo.get(key)), f"{name} within": point.by_slo.get(key)}
    return cells


def _split_cells(split: SplitRate) -> Cells:
    holds = split.offered_per_s
    ends: Cells = {"Holds": holds.value, "Holds, low": holds.low, "Holds, high": holds.high}
    return {"Split": split.split, **ends, "Holds per GPU": split.per_gpu_s.value}


def _charts(group: int, study: ResultFolder, rows: Sequence[Cells]) -> list[Chart]:
    """Return charts of p99 latency with its limits, and of attainment with its goal, against the load."""
    answer: CapacityAnswer = study.answer
    several = len({row["Split"] for row in rows}) > 1  # curves in one group would be joined
    if len(rows) < 2 or several or answer.question == "ratio":
        return []
    across = LOADS[answer.question]
    latencies: list[ChartSeries] = []
    for key in LATENCIES:
        name = SHORT[key]
        if any(row[f"{name} p99"] for row in rows) and (key in answer.slo or key in ("ttft_s", "tpot_s")):
            latencies.append(ChartSeries(f"{name} p99"))
            if key != BINDS_GAPS and rows[0][f"{name} limit"] is not None:
                latencies.append(ChartSeries(f"{name} limit", is_limit=True))
    attained = (ChartSeries("Attained"), ChartSeries("Goal", is_limit=True))
    return [
        Chart(f"p99 latency: {study.label}", "line", group, across, tuple(latencies), "ms, logarithmic", is_log=True),
        Chart(f"Requests that meet every SLO: {study.label}", "line", group, across, attained, "share", most=1),
    ]
