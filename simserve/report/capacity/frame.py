"""Frame of the pages of a capacity: pools, tables and tiles, warnings, and what an answer comes from."""

from collections.abc import Mapping, Sequence

from simserve.metrics.answers.capacity import CapacityAnswer, CapacityStudy
from simserve.metrics.answers.capacity_loads import ProbedLoad
from simserve.report.capacity.rate import SHOWN
from simserve.report.cautions import capacity_warnings
from simserve.report.charts import Figure
from simserve.report.document import Headline, page
from simserve.report.formats import SHORT, seconds
from simserve.report.pools import pools_words
from simserve.report.sections import prose, tile


def capitalized(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return a table as pages have it: the title of its first column with a capital."""
    head, *others = rows
    return [(head[0].capitalize(), *head[1:]), *others]


def tail_tiles(point: ProbedLoad) -> list[str]:
    """Return a tile per latency at a load: p99, and p50 below it."""
    return [
        tile(
            f"{SHORT[key]} p99 at this load",
            seconds(point.latency_s(key, "p99")),
            [prose(f"p50 {seconds(point.latency_s(key, 'p50'))}")],
        )
        for key in SHOWN
    ]


def setup(result: CapacityStudy) -> tuple[str]:
    """Return the pools in words."""
    return (pools_words([pool.facts() for pool in result.pools]),)


def capacity_page(
    result: CapacityAnswer, headline: Headline, parts: Sequence[str], figures: Mapping[str, Figure]
) -> str:
    """Return the page of an answer as HTML, with its warnings and what it comes from."""
    scenario, first = result.scenario, result.scenario.seed or 0
    seeds = None if result.answer is None else f"{first} to {first + result.answer.n_seeds - 1}"
    made = {"simserve": result.version, "scenario": scenario.digest, "seeds": seeds}
    return page(headline, (*parts, capacity_warnings(result)), figures, made)
