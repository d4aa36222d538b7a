"""Autoscale as an answer: what policies make of a load, as autoscale.json has it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from simserve.metrics import summary_schema
from simserve.metrics.answers.parts import Index, ScenarioName
from simserve.metrics.answers.struct import (
    FINITE,
    Amount,
    Column,
    Count,
    Flag,
    Name,
    Seconds,
    Share,
    Struct,
    Text,
    UsdPerHour,
    VersionedAnswer,
)
from simserve.metrics.summary_schema import DecisionJson, Slo

Hours = Annotated[summary_schema.Measured, FINITE, Column("amount", "float", "h")]


class ScaledFleet(Struct):
    """What a policy makes of the load: means over its seeds."""

    policy: Name = Field(title="Policy")
    """Its name, as given."""
    settings: Mapping[str, Any] | None
    """The autoscaler as a scenario has it; null where the replicas stay."""
    word: Text = Field(None, title="SLO")
    """The decision in a word; null without an SLO."""
    reason: Text = Field(None, title="Reason")
    """Why runs failed; null if none did."""
    on_front: Flag = Field(None, title="On the front")
    """Whether no other policy costs less and attains more."""
    attained_frac: Share = Field(None, title="Attained")
    """[share] Requests that met every limit, at the nominal load."""
    usd_per_hour: UsdPerHour = Field(None, title="USD/h")
    """[USD/h] Price of its GPUs on average, those included of replicas that start or drain."""
    mean_gpus: Amount = Field(None, title="GPUs")
    """GPUs on average."""
    gpu_hours: Hours = Field(None, title="GPU-hours")
    """[h] GPU time of a run."""
    n_scalings: Amount = Field(None, title="Scalings")
    """Instants of a run at which replicas were added or removed."""
    cycle_s: Seconds = Field(None, title="Limit cycle")
    """[s] Period at which it oscillates by itself, in most runs; null if it does not."""
    below_s: Seconds = Field(None, title="Time below")
    """[s] Time of a run in which fewer than 90% of arriving requests met the SLO."""
    longest_below_s: Seconds = Field(None, title="Longest below")
    """[s] The longest such time at a stretch, such as from a step of the load until it has scaled for it."""
    n_failed: Amount = Field(None, title="Cut")
    """Requests of a run that failed: cut at the end of a grace, or lost with their replica."""
    n_seeds: Count = Field(None, title="Seeds")
    """Seeds that finished."""
    decision: DecisionJson | None = None
    """The decision with all that it rests on; null without an SLO."""


class SignalRank(Struct):
    """What the best setting of a signal costs and attains, under one bare rule."""

    signal: Name
    """The metric or query that scales the pool."""
    target: Amount
    """Its best target: value per replica to keep."""
    policy: Index
    """Number of that setting among the policies."""
    gpu_hours: Hours = None
    """[h] GPU time of a run."""
    attained_frac: Share = None
    """[share] Requests that met every limit, mean over the seeds."""
    regret_h: Hours = None
    """[h] GPU time beyond that of the best setting of any signal; null where no setting reaches the goal."""


class ReplayedPolicy(Struct):
    """What a policy wants, fed the recorded replicas and samples."""

    policy: Name
    """Its name, as given."""
    settings: Mapping[str, Any] | None
    """The autoscaler as a scenario has it; null where the replicas stay."""
    desired: Sequence[int]
    """Replicas that it wants at each instant."""
    n_changes: Count
    """Instants at which it wants another number than before."""
    first_change_s: Seconds
    """[s] The first of these; null without one."""
    replica_s: Amount
    """[s] Sum of the wanted replicas over time."""
    agreed_frac: Share
    """[share] Instants at which it wants what was recorded; null without `desired` in the file."""
    differs_at_s: Sequence[float]
    """[s] The other instants."""


class RecordedFleet(Struct):
    """A recorded fleet; its signals stay as they were, whatever a policy wants."""

    file: str
    """File of the signals."""
    at_s: Sequence[float]
    """[s] Instants, from the first row."""
    replicas: Sequence[int]
    """Replicas that served or started."""
    desired: Sequence[int | None] | None
    """Replicas that the fleet's own autoscaler wanted; null without them in the file."""
    replica_s: Amount
    """[s] Sum of its replicas over time."""
    silent_s: Seconds
    """[s] Time from joining to a first sample; null where pods have columns of their own."""
    policies: Sequence[ReplayedPolicy]
    """All policies, in the order given."""
    notes: Sequence[str]
    """What policies read and the file lacks."""


class AutoscaleAnswer(VersionedAnswer):
    """What `simserve autoscale` found."""

    command: ClassVar[str] = "autoscale"
    listed: ClassVar[tuple[str, type[Struct]] | None] = ("policies", ScaledFleet)

    scenario: ScenarioName
    """The scenario of which one pool is scaled."""
    pool: str
    """The pool that is scaled."""
    goal_frac: Annotated[float, Field(ge=0, le=1)]
    """[share] Requests that must meet every limit."""
    slo: Slo | None = None
    """[s] Limits by latency."""
    n_runs: Count
    """Runs that it took, those with draws of costs too."""
    best: Index | None
    """Number of the policy to take: the cheapest that meets the SLO; null where none does."""
    policies: Sequence[ScaledFleet]
    """All policies, in the order given."""
    yaml: str | None = None
    """The policy to take, as the key of its pool in a scenario."""
    manifest: str | None = None
    """The policy to take, as a manifest of its controller; null for a kind that has none."""
    signals: Sequence[SignalRank] | None = None
    """Signals, that with the least regret first; null without `--signals`."""
    recorded: RecordedFleet | None = None
    """What policies want in a recorded fleet; null without `--recorded`."""

    @property
    def decision(self) -> DecisionJson | None:
        """The decision about the policy to take; None without one."""
        return None if self.best is None else self.policies[self.best].decision
