"""Capacity as an answer: what `simserve capacity` found, as capacity.json has it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from simserve.metrics.answers.capacity_found import FoundClients, FoundRate, FoundReplicas, FoundSplit, SplitRate
from simserve.metrics.answers.capacity_loads import LoadCurve, ProbedLoad, SearchEnd
from simserve.metrics.answers.parts import NominalLoad, ScenarioName
from simserve.metrics.answers.pools import StudiedPool
from simserve.metrics.answers.struct import StudyAnswer
from simserve.metrics.decision_json import DecisionJson
from simserve.metrics.summary_schema import Share, Slo
from simserve.tables.files import plain

ASKED = Field(alias="asked")
Probed = Annotated[Sequence[ProbedLoad], Field(min_length=1)]


class CapacityStudy(StudyAnswer):
    """The question, its scenario and its warnings, as the answers to all questions have them."""

    command: ClassVar[str] = "capacity"

    version: str | None = None
    scenario: ScenarioName
    goal_frac: Annotated[float, Field(gt=0, lt=1)]
    slo: Slo
    slo_classes: Mapping[str, Slo]
    pools: Sequence[StudiedPool] = ()
    is_repeated: bool = False
    warnings: Sequence[str] = ()

    def facts(self) -> dict[str, Any]:
        """Return the answer as JSON has it, without the keys that other questions have."""
        result: dict[str, Any] = plain(self.model_dump(by_alias=True, exclude_unset=True))
        return result


class SearchedCapacity(CapacityStudy):
    """Where the search for a highest load ended."""

    question: Annotated[Literal["rate", "concurrency"], ASKED]
    state: SearchEnd | None = None
    stopped_at: ProbedLoad | None = None
    load: NominalLoad | None = None


class RatePoints(SearchedCapacity):
    """The highest rate, and the loads that ran."""

    own_load: ProbedLoad | None = None
    answer: FoundRate | None
    points: Probed

    @property
    def decision(self) -> DecisionJson | None:
        """The decision about the scenario's own load, as a run says; None where that was not run."""
        own = self.own_load
        return None if own is None or own.word is None else DecisionJson(word=own.word, probability=own.probability)


class RateCapacity(LoadCurve, RatePoints):
    """`simserve capacity`."""

    question: Annotated[Literal["rate"], ASKED]


class ConcurrencyPoints(SearchedCapacity):
    """The loads that ran, and the highest concurrency."""

    points: Sequence[ProbedLoad]
    answer: FoundClients | None


class ConcurrencyCapacity(LoadCurve, ConcurrencyPoints):
    """`simserve capacity` of a closed loop."""

    question: Annotated[Literal["concurrency"], ASKED]


class ReplicasCapacity(CapacityStudy):
    """`simserve capacity --replicas`."""

    question: Annotated[Literal["replicas"], ASKED]
    state: SearchEnd | None = None
    pool: str
    confidence: Share
    load: NominalLoad | None = None
    answer: FoundReplicas | None
    tied: FoundReplicas | None = None
    points: Probed

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
    """`simserve capacity --ratio`."""

    question: Annotated[Literal["ratio"], ASKED]
    load: NominalLoad | None = None
    state: SearchEnd | None = None
    answer: FoundSplit | None
    together: SplitRate | None
    splits: Sequence[SplitRate]


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
