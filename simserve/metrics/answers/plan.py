"""Plan as an answer: what `simserve plan` found, as plan.json has it; its options are the rows of plan.parquet."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from simserve.metrics import summary_schema
from simserve.metrics.answers.fleet_needs import Assumptions, Autoscaling, Growth, PlanDemand, ScaledUse
from simserve.metrics.answers.parts import ScenarioName
from simserve.metrics.answers.plan_option import PlanOption
from simserve.metrics.answers.pools import StudiedPool
from simserve.metrics.answers.resilience import ResilienceAnswer
from simserve.metrics.answers.struct import Struct, VersionedAnswer
from simserve.metrics.summary_schema import EARLIER, DecisionJson, Slo


class PlanAnswer(VersionedAnswer):
    """What `simserve plan` found."""

    command: ClassVar[str] = "plan"
    listed: ClassVar[tuple[str, type[Struct]] | None] = ("options", PlanOption)

    sentence: str = ""
    """The recommended option, and why."""
    scenario: ScenarioName
    """The scenario that was studied."""
    goal_frac: summary_schema.Share
    """[share] Requests that must meet every limit."""
    slo: Slo = Field(default_factory=dict)
    """[s] Limits by latency, of requests without limits of their class."""
    slo_classes: Mapping[str, Slo] = {}
    """[s] Limits by latency of each class that has its own."""
    pools: Sequence[StudiedPool] = ()
    """Pools of the scenario."""
    is_repeated: bool = False
    """Whether nothing is random, so that every seed gives the same run: each fleet was run once."""
    state: Literal["found", "none"] | None = None
    """`found`, or `none`: no option surely meets the goal."""
    demand: PlanDemand
    """The demand that fleets are sized for."""
    assumed: Assumptions
    """What the plan assumes."""
    options: Sequence[PlanOption]
    """All options: the best first, those that miss the SLO last."""
    spares: ResilienceAnswer | None = None
    """What failures cost the recommended option, and its spares, as `simserve resilience` says; null without `--spare
    auto`."""
    growth: Growth | None = None
    """Growth of the recommended option; null with `--growth 0`."""
    autoscaling: Autoscaling | None = None
    """Hours of the recommended option; null unless the load is diurnal."""
    scaled: ScaledUse | None = None
    """What the scenario's autoscaler makes of that fleet; null without one."""
    warnings: Sequence[str] = ()
    """Warnings of a run, in sentences."""

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
