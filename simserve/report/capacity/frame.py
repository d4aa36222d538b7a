"""Frame of the pages of a capacity: pools, tables and tiles, warnings, and what an answer comes from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simserve.metrics.answers.capacity import CapacityAnswer
from simserve.metrics.answers.capacity_loads import ProbedLoad
from simserve.report.capacity.rate import SHOWN
from simserve.report.cautions import capacity_warnings
from simserve.report.document import Chapter, Document, Table, Tile
from simserve.report.formats import SHORT, plural, seconds
from simserve.report.pools import pools_words


def page_table(table: Table, *, is_tall: bool = False) -> Table:
    """Return a table as pages have it: the title of its first column with a capital."""
    return replace(table, heads=(table.heads[0].capitalize(), *table.heads[1:]), is_tall=is_tall)


def tail_tiles(point: ProbedLoad) -> list[Tile]:
    """Return a tile per latency at a load: p99, and p50 below it."""
    return [
        Tile(
            f"{SHORT[key]} p99 at this load",
            seconds(point.latency_s(key, "p99")),
            [f"p50 {seconds(point.latency_s(key, 'p50'))}"],
        )
        for key in SHOWN
    ]


@dataclass(frozen=True)
class CapacityHead:
    """Head of the document of a capacity."""

    state: str
    title: str
    lead: str
    tiles: Sequence[Tile] = ()


def capacity_document(
    result: CapacityAnswer, head: CapacityHead, parts: Sequence[Chapter], brief: Sequence[str | Table]
) -> Document:
    """Return the document of an answer, with its warnings and what it comes from."""
    scenario, first = result.scenario, result.scenario.seed or 0
    seeds = None if result.answer is None else f"{first} to {first + result.answer.n_seeds - 1}"
    fleet = None if result.answer is None or result.question == "ratio" else result.answer.fleet
    kept = [] if fleet is None else [plural(fleet.n_gpus, "GPU"), f"{fleet.usd_per_hour:,.2f} USD/h"]
    return Document(
        command="capacity",
        name=scenario.name,
        state=head.state,
        title=head.title,
        lead=head.lead,
        kept=kept,
        setup=(pools_words(result.pools),),
        tiles=head.tiles,
        parts=(*parts, capacity_warnings(result)),
        made={"simserve": result.version, "scenario": scenario.digest, "seeds": seeds},
        brief=brief,
        warnings=result.warnings,
    )
