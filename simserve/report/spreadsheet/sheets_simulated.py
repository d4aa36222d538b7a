"""Sheets of what was simulated: fleets, by which the cost sheet sizes one, and latency and attainment at each load."""

from collections.abc import Sequence
from operator import attrgetter

from simserve.metrics.answers.capacity import CapacityAnswer, ReplicasCapacity
from simserve.metrics.answers.capacity_found import SplitRate
from simserve.metrics.answers.capacity_loads import LATENCIES, ProbedLoad
from simserve.metrics.answers.plan import PlanAnswer
from simserve.metrics.result_folder import ResultFolder
from simserve.report.capacity.load_curve import Searched
from simserve.report.formats import SHORT
from simserve.report.spreadsheet.cost import Basis, FleetPoint
from simserve.report.spreadsheet.sheets import (
    Cells,
    Chart,
    ChartSeries,
    Sheet,
    SheetColumn,
    SheetGroup,
    cells_of,
    columns_of,
    ms,
    tabulated,
)

FLEETS_NOTE = (
    "Rows are simulations of the unit of the sheet Cost. A demand needs the smallest number of replicas that a fleet "
    "which meets the goal allows: its own number up to its load, beyond that in proportion, never fewer. Larger fleets "
    "even out bursts, so this errs on the safe side; dividing a load among fewer replicas would not."
)

FLEET_COLUMNS = (
    SheetColumn("Replicas", "count"),
    SheetColumn("Load", "rate", "requests/s"),
    *(SheetColumn(head, "share") for head in ("Attained", "Attained, low", "Attained, high")),
    SheetColumn("r", "rate"),
    SheetColumn("P (goal met)", "share"),
    SheetColumn("Decision", "text"),
)

MET = 0
"""The group of fleets that meet the goal."""


def simulated_fleets(basis: Basis) -> Sheet:
    """Return a row a fleet and load, those that meet the goal first."""
    kinds = {True: "Meets the goal", False: "Does not surely meet it"}
    fleets = sorted(basis.fleets, key=attrgetter("replicas", "offered_per_s"))
    groups = [(title, [fleet for fleet in fleets if fleet.meets is meets]) for meets, title in kinds.items()]
    named = {"met_replicas": (MET, "Replicas"), "met_loads": (MET, "Load")}
    columns = (*FLEET_COLUMNS, SheetColumn("From", "text"))
    rows = tuple(SheetGroup(title, [_row(fleet) for fleet in own]) for title, own in groups if own)
    return Sheet("Simulated fleets", "Replicas, load and attainment", FLEETS_NOTE, "Goal", columns, rows, named=named)


def _row(fleet: FleetPoint) -> tuple[str | float | None, ...]:
    numbers = (fleet.replicas, fleet.offered_per_s, *fleet.attained, fleet.r, fleet.probability)
    return (*numbers, None if fleet.word is None else fleet.word.replace("_", " "), fleet.source)


def fleets_of(source: ResultFolder) -> list[FleetPoint]:
    """Return the fleets that a plan simulated of its first option, or a capacity of replicas."""
    if source.command == "plan":
        return _of_plan(source.answer, source.title)
    answer: CapacityAnswer = source.answer
    return _of_replicas(answer, source.title) if answer.question == "replicas" else []


def most_held(fleets: Sequence[FleetPoint]) -> tuple[float, int]:
    """Return the load and the replicas of the fleet that meets the goal with the most load a replica."""
    best = max((fleet for fleet in fleets if fleet.meets), key=lambda fleet: fleet.offered_per_s / fleet.replicas)
    return best.offered_per_s, best.replicas


def _of_plan(answer: PlanAnswer, title: str) -> list[FleetPoint]:
    best, load, spare = answer.best, answer.demand.sized_for_per_s, answer.assumed.spare_replicas or 0
    if best is None or not best.needed_replicas or not load:
        return []
    attained = (best.attained_frac, best.attained_low_frac, best.attained_high_frac)
    fleets = [
        FleetPoint(title, best.needed_replicas, load, attained, best.r, best.probability, best.decision, meets=True)
    ]
    if best.needed_replicas > 1 and best.fewer_attained_frac is not None:
        fleets.append(FleetPoint(title, best.needed_replicas - 1, load, (best.fewer_attained_frac, None, None)))
    grown = [(row.replicas - spare, row) for row in (answer.growth.rows if answer.growth else ()) if row.replicas]
    known = {(fleet.replicas, fleet.offered_per_s) for fleet in fleets}
    return fleets + [
        FleetPoint(f"{title}, month {row.month}", n, row.offered_per_s, word="met", meets=True)
        for n, row in grown
        if n > 0 and row.offered_per_s > 0 and (n, row.offered_per_s) not in known
    ]


def _of_replicas(answer: ReplicasCapacity, title: str) -> list[FleetPoint]:
    """Return the numbers of replicas that ran; the found one and larger ones meet the goal."""
    least = None if answer.answer is None else answer.answer.replicas
    return [
        FleetPoint(
            title,
            point.replicas,
            point.offered_per_s,
            (point.attained_frac, point.low_frac, point.high_frac),
            answer.answer.r if answer.answer is not None and point.replicas == least else None,
            point.probability,
            point.word or point.decision,
            meets=least is not None and point.replicas >= least and not point.saturated,
        )
        for point in answer.points
        if point.replicas and point.offered_per_s
    ]


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
