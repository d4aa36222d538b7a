"""The sheet of simulated fleets: replicas, load and attainment of a unit, by which the cost sheet sizes a fleet."""

from collections.abc import Sequence
from operator import attrgetter

from simserve.metrics.answers.capacity import CapacityAnswer, ReplicasCapacity
from simserve.metrics.answers.plan import PlanAnswer
from simserve.metrics.result_folder import ResultFolder
from simserve.report.spreadsheet.cost import Basis, FleetPoint
from simserve.report.spreadsheet.sheets import Sheet, SheetColumn, SheetGroup

NOTE = (
    "Rows are simulations of the unit of the sheet Cost. A demand needs the smallest number of replicas that a fleet "
    "which meets the goal allows: its own number up to its load, beyond that in proportion, never fewer. Larger fleets "
    "even out bursts, so this errs on the safe side; dividing a load among fewer replicas would not."
)

COLUMNS = (
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
    columns = (*COLUMNS, SheetColumn("From", "text"))
    rows = tuple(SheetGroup(title, [_row(fleet) for fleet in own]) for title, own in groups if own)
    return Sheet("Simulated fleets", "Replicas, load and attainment", NOTE, "Goal", columns, rows, named=named)


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
