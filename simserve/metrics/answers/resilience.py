"""Resilience as an answer: what failures cost, and the spares that a pool needs, as resilience.json has it."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simserve.metrics import summary_schema
from simserve.metrics.answers import struct
from simserve.metrics.answers.parts import Index, Interval, ScenarioName
from simserve.metrics.answers.struct import FINITE, Column, Struct, VersionedAnswer
from simserve.metrics.summary_schema import Amount, Count, DecisionJson, Share, Slo

Group = tuple[int, int]
"""Replicas that serve, and warm spares beside them."""

SpareKind = Literal["none", "active", "warm", "cold"]
Minutes = Annotated[summary_schema.Measured, FINITE, Column("amount", "float", "min")]


class FleetState(Struct):
    """Replicas of a pool that serve, and what they attain."""

    serving: Count
    """Replicas that serve."""
    time_frac: Share
    """[share] Time with just as many of them."""
    r: struct.Ratio = None
    """Quantile at the goal of latency / limit in a fleet of that size; null without a run of it."""
    attained_frac: Share
    """[share] Requests that met every limit; of a size that did not run, those of the next smaller one that did."""
    is_below: bool
    """Whether that is below the goal, or the queue grows."""


class SpareOption(Struct):
    """A number of spares, and what the pool attains with them."""

    spare: struct.Replicas = Field(title="Spares")
    """[replicas] Spares."""
    kind: Annotated[SpareKind, Column("text", "category")] = Field(title="Kind")
    """`active`: they serve as all others do; `warm`: loaded, they take over once a failure is known; `cold`: they start
    then, on GPUs that they hold."""
    migrate: struct.Text = Field(None, title="Migrate")
    """What becomes of requests of which tokens were sent, `none` or `recompute`: but in the last row the scenario's."""
    holds: struct.Flag = Field(None, title="Holds")
    """Whether the minutes are within the budget."""
    minutes: Minutes = Field(None, title="Minutes")
    """[min] Expected minutes of a month below the goal."""
    state_minutes: Minutes = Field(None, title="Of states")
    """[min] Minutes of these with too few replicas."""
    transient_minutes: Minutes = Field(None, title="Of transients")
    """[min] Minutes of these right after failures or with a slow replica, beyond those with too few replicas."""
    attained_frac: struct.Share = Field(None, title="Attained")
    """[share] Requests of a month that met every limit."""
    failures: struct.Amount = Field(None, title="Failures")
    """Failures a month of the replicas that serve."""
    usd_per_hour: struct.UsdPerHour = Field(None, title="USD/h")
    """[USD/h] Price of the GPUs of the spares."""
    margin: struct.Amount = Field(None, title="Margin")
    """Factor on all rates of failures up to which the budget holds, 1,000 at most; null where it does not."""
    states: Sequence[FleetState] = ()
    """Numbers of replicas that serve, most first."""


class Transient(Struct):
    """What one failure of a kind costs, means over seeds against the same seeds without it."""

    what: str
    """What fails."""
    replicas: Count
    """Replicas of the pool before."""
    warm: Count
    """Warm spares beside them."""
    migrate: str = "none"
    """What becomes of requests of which tokens were sent."""
    n_lost: Count
    """Replicas that are lost at once; 0: one is slow."""
    speed_frac: struct.Share = None
    """[share] Speed that a slow one has left; null where replicas are lost."""
    mtbf_s: Amount
    """[s] Mean time between failures of one unit."""
    source: str
    """Where that is from; of a slow replica, how long and how slow it is, too."""
    detect_s: Amount
    """[s] Time until it is known."""
    repair_s: Amount
    """[s] Time until the lost replicas typically serve again, or that one is slow."""
    failures: Amount
    """Failures a month."""
    missed: Interval
    """Requests that missed a limit because of it."""
    lost: Interval
    """Requests of these that were lost with their replica."""
    below_s: Interval
    """[s] Time below the goal because of it, in intervals of 15 s and 100 arriving requests or more."""
    recover_s: Interval
    """[s] The longest such time at a stretch: until it has recovered."""
    n_seeds: Count
    """Pairs of runs, each with the failure at another instant."""

    @property
    def group(self) -> Group:
        """What was there before."""
        return self.replicas, self.warm


class SizedFleet(Struct):
    """A pool of fixed size."""

    replicas: Count
    """Its replicas."""
    attained_frac: struct.Share
    """[share] Requests that met every limit, at the nominal load."""
    n_seeds: Count
    """Runs of it."""
    reason: struct.Text
    """Why runs failed; null if none did."""
    decision: DecisionJson | None
    """The decision with all that it rests on; null without a run."""


class ResilienceAnswer(VersionedAnswer):
    """What `simserve resilience` found."""

    command: ClassVar[str] = "resilience"
    listed: ClassVar[tuple[str, type[Struct]] | None] = ("options", SpareOption)

    scenario: ScenarioName
    """The scenario, of which one pool has failures."""
    pool: str
    """The pool."""
    replicas: Count
    """Its replicas without spares; at the start where it has an autoscaler."""
    is_scaled: bool
    """Whether an autoscaler decides how many there are: then failures cost what their runs say, and spares are warm."""
    goal_frac: Annotated[float, Field(ge=0, le=1)]
    """[share] Requests that must meet every limit."""
    slo: Slo | None = None
    """[s] Limits by latency."""
    budget_minutes: Minutes
    """[min] Minutes of a month of 30 days that may be below the goal."""
    n_runs: Count
    """Runs that it took."""
    best: Index | None
    """Number of the option to take: the fewest spares that hold the budget; null where none do."""
    options: Sequence[SpareOption]
    """Numbers of spares, the fewest first, and the one to take with the other `migrate`."""
    transients: Sequence[Transient]
    """What one failure of each kind costs."""
    fleets: Sequence[SizedFleet]
    """Fleets of fixed size that were run, the smallest first."""
    warnings: Sequence[str] = ()
    """What to know of the runs: those that failed, and loads that end before a repair."""

    @property
    def decision(self) -> DecisionJson | None:
        """The decision about the pool with the spares to take, without failures; None without a run of it."""
        best = None if self.best is None else self.options[self.best]
        serving = self.replicas if best is None else best.states[0].serving
        return next((each.decision for each in self.fleets if each.replicas == serving), None)


def chosen_of(options: Sequence[SpareOption], best: int | None) -> SpareOption:
    """Return the option to take, or else the one with the fewest minutes where `migrate` is the scenario's."""
    own = [each for each in options if each.migrate == options[0].migrate]
    return min(own, key=lambda each: each.minutes or 0.0) if best is None else options[best]
