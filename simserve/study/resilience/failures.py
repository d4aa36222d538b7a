"""Failures of a pool: how often each kind strikes, what it takes down, and the time with so many replicas down."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from simserve.errors import Problem, ScenarioError
from simserve.scenario import Scenario
from simserve.scenario.fleet import Failure, PlacementSection, Startup

DAY_S = 86_400.0
MONTH_S = 30 * DAY_S

MTBF_S: Mapping[str, tuple[float, str]] = {
    "process": (176 * DAY_S, "60% of severe incidents are in the engine, one of a server's hardware in 264 days"),
    "gpu": (4_465 * DAY_S, "Llama 3: 47% of stops, one of a server of 8 GPUs in 264 days"),
    "node": (663 * DAY_S, "Llama 3: 40% of stops, one of a server of 8 GPUs in 264 days"),
}
"""[s] Mean time between failures of one unit where a scenario gives none, and its source.

Training of Llama 3 405B stopped 419 times in 54 days on 2,048 servers of 8 GPUs, a server once in 264 days: 47.3% by a
GPU or its memory, 12.9% by software, 39.8% by anything else. Of 156 severe incidents of LLM inference 60% were in the
engine, where restarts of a process dominate: 1.5 for each other one. Meta's RSC had a stop of a server in 42 days."""

MOST_NODES = 10**6
"""Nodes of the only rack."""


class GroupLoss(NamedTuple):
    """Failures of one kind, as a fleet has them."""

    per_s: float
    """[/s] Failures of one group of replicas."""
    n_lost: int
    """Replicas of a group, which are lost together."""
    repair_s: float
    """[s] Mean time until a lost replica serves again."""


def down_shares(n: int, losses: Sequence[GroupLoss]) -> list[float]:
    """Return the shares of time with 0, 1, ... of n replicas down: the stationary distribution of a chain.

    Groups that are up fail at their rates, and each replica is repaired on its own: with groups of one a birth-death
    chain, with the binomial distribution however repair times are distributed. As repairs end one by one, the flow of
    failures from at most j down to more equals that of repairs from j + 1.
    """
    per_s = sum(loss.per_s for loss in losses)
    repair_s = sum(loss.per_s * loss.repair_s for loss in losses) / per_s if per_s else 0.0
    weights = [1.0]
    for j in range(n):
        flow = sum(
            weights[i] * loss.per_s * (n - i) / min(loss.n_lost, n)
            for loss in losses
            for i in range(max(0, j - loss.n_lost + 1), j + 1)
        )
        weights.append(flow * repair_s / (j + 1))
        if weights[-1] > 1e200:
            weights = [each / weights[-1] for each in weights]
    total = math.fsum(weights)
    return [each / total for each in weights]


@dataclass(frozen=True)
class Threat:
    """A kind of failure that a pool has."""

    failure: Failure
    """The scenario's, or one with the defaults."""
    mtbf_s: float
    """[s] Mean time between failures of one unit."""
    source: str
    """Where that is from."""
    per_s: float
    """[/s] Failures of one group of replicas."""
    n_lost: int
    """Replicas of a group, which are lost together, in a pool that is large enough."""
    start_s: float
    """[s] Time of a typical start on GPUs that are there."""
    new_s: float
    """[s] Time until a machine and its image are there; 0 for a process, which has them."""

    @property
    def what(self) -> str:
        """Return what fails."""
        return self.failure.what

    @property
    def back_s(self) -> float:
        """[s] Time until a replica serves in place of a lost one, on GPUs that are there."""
        return self.failure.detect_s + self.start_s

    @property
    def repair_s(self) -> float:
        """[s] Time until a lost replica serves again, without spares."""
        return self.back_s + self.new_s

    @property
    def loss(self) -> GroupLoss:
        """Return it as the chain takes it."""
        return GroupLoss(self.per_s, self.n_lost, self.repair_s)

    def of(self, n: int) -> tuple[int, float]:
        """Return how many of n replicas it takes, and how often a month it does."""
        n_lost = min(self.n_lost, n)
        return n_lost, self.per_s * n / n_lost * MONTH_S

    def times(self, factor: float) -> "Threat":
        """Return it at other rates."""
        return replace(self, per_s=factor * self.per_s)


def threats_of(scenario: Scenario, place: int, kinds: Sequence[str]) -> list[Threat]:
    """Return the failures of a pool: of these kinds, or else of those that the scenario has. Raises ScenarioError."""
    pool = scenario.cluster.pools[place]
    own = [each for each in scenario.cluster.failures or () if each.pool in (None, pool.name)]
    own.sort(key=lambda each: each.mtbf_s is None)
    known: dict[str, Failure] = {each.what: each for each in reversed(own)}
    threats = [_threat(scenario, place, known.get(kind), kind) for kind in kinds or [*known] or [*MTBF_S]]
    if any(each.failure.recover == "none" for each in threats):
        rule = "leaves nothing standing in the long run, as no replica comes back"
        raise ScenarioError([Problem("cluster.failures", rule, "recover: none", "use recover: restart")])
    down = sum(each.per_s * each.repair_s for each in threats)
    if down >= 1:
        rule, got = "must leave most replicas standing", f"rates at which {down / (1 + down):.0%} are down"
        raise ScenarioError([Problem("cluster.failures", rule, got, "raise mtbf_s, or shorten detect_s and startup")])
    return threats


def _threat(scenario: Scenario, place: int, known: Failure | None, kind: str) -> Threat:
    """Return failures of a kind, as the scenario has them or by default. Raises ScenarioError without a rate."""
    if kind not in ("process", "gpu", "node", "rack"):
        rule = "there is no such kind of failure"
        raise ScenarioError([Problem("command line --what", rule, kind, f"use {', '.join(MTBF_S)} or rack")])
    failure = known or Failure.model_validate({"what": kind, "at_s": 0.0})
    default_s, source = MTBF_S.get(kind, (None, ""))
    mtbf_s = failure.mtbf_s or default_s
    if mtbf_s is None:
        remedy = "give the scenario cluster.failures: [{what: rack, mtbf_s: 2.0e8}]"
        raise ScenarioError([Problem("cluster.failures", f"has no rate of a {kind}, and no default", None, remedy)])
    n_gpus, size = scenario.setups[place].gpus_per_replica, _unit_gpus(scenario, place, kind)
    startup = scenario.cluster.pools[place].startup or Startup()
    held_s = startup.typical_s(in_place=True)
    return Threat(
        failure=failure,
        mtbf_s=mtbf_s,
        source="the scenario" if failure.mtbf_s else source,
        per_s=math.ceil(n_gpus / size) / mtbf_s,
        n_lost=max(1, int(size // n_gpus)),
        start_s=held_s + scenario.setups[place].ledger.weights_bytes * n_gpus / startup.weights.rate,
        new_s=0.0 if kind == "process" else startup.typical_s(in_place=False) - held_s,
    )


def _unit_gpus(scenario: Scenario, place: int, kind: str) -> int:
    """Return the GPUs that fail together."""
    setup, nodes = scenario.setups[place], scenario.cluster.placement or PlacementSection()
    node_gpus = nodes.gpus_per_node or setup.gpu.gpus_per_node
    match kind:
        case "gpu":
            return 1
        case "node":
            return node_gpus
        case "rack":
            return node_gpus * (nodes.nodes_per_rack or MOST_NODES)
        case _:
            return setup.gpus_per_replica
