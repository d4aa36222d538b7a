"""Capacity as an answer: what `simserve capacity` found, as capacity.json has it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from simserve.metrics.answers.capacity_found import FoundClients, FoundRate, FoundReplicas, FoundSplit, SplitRate
from simserve.metrics.answers.capacity_loads import LoadCurve, ProbedLoad, SearchEnd
from simserve.metrics.answers.parts import NominalLoad, ScenarioName
from simserve.metrics.answers.pools import StudiedPool
from simserve.metrics.answers.struct import StudyAnswer
from simserve.metrics.summary_schema import DecisionJson, Share, Slo

ASKED = Field(alias="asked")
Probed = Annotated[Sequence[ProbedLoad], Field(min_length=1)]


class CapacityStudy(StudyAnswer):
    """The question, its scenario and its warnings, as the answers to all questions have them."""

    command: ClassVar[str] = "capacity"
    only_set = True  # other questions have other keys

    version: str | None = None
    """Version of simserve that ran it."""
    scenario: ScenarioName
    """The scenario that was studied."""
    goal_frac: Annotated[float, Field(gt=0, lt=1)]
    """[share] Requests that must meet every limit."""
    slo: Slo
    """[s] Limits by latency, of requests without limits of their class."""
    slo_classes: Mapping[str, Slo]
    """[s] Limits by latency of each class that has its own."""
    pools: Sequence[StudiedPool] = ()
    """Pools of the scenario."""
    is_repeated: bool = False
    """Whether nothing is random, so that every seed gives the same run: each load was run once, without intervals."""
    warnings: Sequence[str] = ()
    """Warnings of a run, in sentences."""


class SearchedCapacity(CapacityStudy):
    """Where the search for a highest load ended."""

    question: Annotated[Literal["rate", "concurrency"], ASKED]
    """The question that `answer` answers."""
    state: SearchEnd | None = None
    """Where the search ended: `found`, or with `every load` or `no load` meeting the goal."""
    stopped_at: ProbedLoad | None = None
    """The load at which a search without an answer stopped; null with one."""
    load: NominalLoad | None = None
    """Nominal and drawn load at the answer, or where the search stopped."""


class RatePoints(SearchedCapacity):
    """The highest rate, and the loads that ran."""

    own_load: ProbedLoad | None = None
    """The scenario's own load, with its decision; null if the search did not run it."""
    answer: FoundRate | None
    """The highest rate; null if there is none."""
    points: Probed
    """Every load that ran, the lowest first; `offered_per_s` is nominal, or that of the answer's seeds without a
    nominal rate."""

    @property
    def decision(self) -> DecisionJson | None:
        """The decision about the scenario's own load, as a run says; None where that was not run."""
        own = self.own_load
        return None if own is None or own.word is None else DecisionJson(word=own.word, probability=own.probability)


class RateCapacity(LoadCurve, RatePoints):
    """What `simserve capacity` found: the highest rate."""

    question: Annotated[Literal["rate"], ASKED]


class ConcurrencyPoints(SearchedCapacity):
    """The loads that ran, and the highest concurrency."""

    points: Sequence[ProbedLoad]
    """Every number of clients that ran, the lowest first."""
    answer: FoundClients | None
    """The highest concurrency; null if there is none."""


class ConcurrencyCapacity(LoadCurve, ConcurrencyPoints):
    """What `simserve capacity --concurrency` found: the highest number of clients."""

    question: Annotated[Literal["concurrency"], ASKED]


class ReplicasCapacity(CapacityStudy):
    """What `simserve capacity --replicas` found: the fewest replicas of a pool."""

    question: Annotated[Literal["replicas"], ASKED]
    """The question that `answer` answers."""
    state: SearchEnd | None = None
    """Left out, as no load is searched for."""
    pool: str
    """The pool that was sized."""
    confidence: Share
    """[share] Confidence of the intervals: 0.95."""
    load: NominalLoad | None = None
    """Nominal and drawn load at the answer, or with the most replicas that ran."""
    answer: FoundReplicas | None
    """The fewest replicas that surely meet the goal; null if none do."""
    tied: FoundReplicas | None = None
    """The fewest replicas on the edge; null if every smaller number misses the SLO."""
    points: Probed
    """Every number of replicas that ran, the fewest first."""

    @property
    def decision(self) -> DecisionJson | None:
        """The decision about the fewest replicas, as a run with them says; None without an answer."""
        fewest = self.answer
        if fewest is None or fewest.word is None:
            return None
        return DecisionJson(word=fewest.word, probability=fewest.probability, r=fewest.r, edge_by=fewest.edge_by)

    @property
    def found_pools(self) -> Sequence[StudiedPool]:
        """Return the pools with the replicas of the answer."""
        sizes = {} if self.answer is None else {self.pool: {"n_replicas": self.answer.replicas}}
        return [pool.model_copy(update=sizes.get(pool.name)) for pool in self.pools]

    @model_validator(mode="after")
    def _has_its_point(self) -> Self:
        if any(point.replicas is None for point in self.points):
            raise ValueError("must have the replicas of each point")
        if self.answer is not None and all(point.replicas != self.answer.replicas for point in self.points):
            raise ValueError("must have a point with the replicas of the answer")
        return self


class RatioCapacity(CapacityStudy):
    """What `simserve capacity --ratio` found: the best split of GPUs."""

    question: Annotated[Literal["ratio"], ASKED]
    """The question that `answer` answers."""
    load: NominalLoad | None = None
    """Nominal and drawn load at the best split."""
    state: SearchEnd | None = None
    """`found`; or `no load`: no split meets the goal."""
    answer: FoundSplit | None
    """The split with the highest rate; null if no load meets the goal."""
    together: SplitRate | None
    """What the same GPUs serve, each doing both; null if replicas of the two pools differ, or there are more pools."""
    splits: Sequence[SplitRate]
    """What each split serves."""


Searched = TypeVar("Searched", RateCapacity, ConcurrencyCapacity)


def _says_where_it_stopped(result: Searched) -> Searched:
    if result.answer is None and result.stopped_at is None:
        raise ValueError("must have stopped_at, as it has no answer")
    return result


CapacityAnswer = Annotated[
    Annotated[RateCapacity, AfterValidator(_says_where_it_stopped)]
    | Annotated[ConcurrencyCapacity, AfterValidator(_says_where_it_stopped)]
    | ReplicasCapacity
    | RatioCapacity,
    Field(discriminator="question"),
]
