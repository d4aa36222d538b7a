"""Plan as an answer: what `simserve plan` found, as plan.json has it; its options are the rows of plan.parquet."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from simserve.metrics import summary_schema
from simserve.metrics.answers.fleet_needs import Assumptions, Autoscaling, Growth, PlanDemand
from simserve.metrics.answers.parts import ScenarioName
from simserve.metrics.answers.plan_option import PlanOption
from simserve.metrics.answers.pools import StudiedPool
from simserve.metrics.answers.struct import Struct, StudyAnswer
from simserve.metrics.decision_json import EARLIER, DecisionJson
from simserve.metrics.summary_schema import Slo
from simserve.tables.schema import SCHEMA


class PlanAnswer(StudyAnswer):
    """The file plan.json."""

    command: ClassVar[str] = "plan"
    listed: ClassVar[tuple[str, type[Struct]] | None] = ("options", PlanOption)
    schema_: str = Field(SCHEMA, alias="schema")
    version: str | None = None
    sentence: str = ""
    scenario: ScenarioName
    goal_frac: summary_schema.Share
    slo: Slo = Field(default_factory=dict)
    slo_classes: Mapping[str, Slo] = {}
    pools: Sequence[StudiedPool] = ()
    is_repeated: bool = False
    state: Literal["found", "none"] | None = None
    demand: PlanDemand
    assumed: Assumptions
    options: Sequence[PlanOption]
    growth: Growth | None = None
    autoscaling: Autoscaling | None = None
    warnings: Sequence[str] = ()

    @property
    def best(self) -> PlanOption | None:
        """Return the option to take; None if none meets the SLO."""
        return next((option for option in self.options if option.rank == 1), None)

    @property
    def decision(self) -> DecisionJson | None:
        """The decision about the fleet to take, as a run with it says; None where there is none."""
        best = self.best
        if best is None or best.decision is None:
            return None
        word, edge_by = EARLIER[best.decision], best.tied_by
        return DecisionJson(word=word, probability=best.probability, r=best.r, edge_by=edge_by, goal=self.goal_frac)

    @property
    def held(self) -> list[PlanOption]:
        """Return the options that meet the SLO, the best first."""
        return [option for option in self.options if option.is_held]
