"""Lifetimes: when replicas are in the fleet, and their GPU time."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simserve.metrics.answers.struct import Figures
from simserve.metrics.summary_schema import Measured
from simserve.tables.columns import Categorical, Columns, Floats, Ints
from simserve.tables.facts import MemberFacts, RunFacts


class FleetTimeJson(Figures):
    """GPU-seconds by the state of replicas."""

    standby_gpu_s: Measured = None
    """[s] Held by spares, and by replicas that sleep, until they are needed."""
    starting_gpu_s: Measured = None
    """[s] Ordered and needed, but not ready."""
    serving_gpu_s: Measured = None
    """[s] Ready for requests."""
    draining_gpu_s: Measured = None
    """[s] Finishing the requests they have."""


Span = tuple[float, float]
"""Start and end of an interval, in seconds."""

INSTANTS = ("ordered_s", "called_s", "ready_s", "draining_s", "gone_s")


@dataclass(frozen=True)
class Lifetimes:
    """The lives of all replicas of a run."""

    facts: RunFacts

    @cached_property
    def members(self) -> tuple[MemberFacts, ...]:
        """One for each replica."""
        return self.facts.members or (MemberFacts(),) * len(self.facts.replica_pool)

    @cached_property
    def gpus(self) -> Ints:
        """GPUs of each replica, `(n_replicas,)`."""
        per_rank = [pool.gpus_per_replica // pool.ranks_per_replica for pool in self.facts.pools_by_replica]
        return np.array(per_rank, np.int64)

    def at_s(self, name: str) -> Floats:
        """Return an instant of INSTANTS, `(n_replicas,)`; where it never came, when the replica was gone, or inf."""
        pairs = ((getattr(member, name), member.gone_s) for member in self.members)
        instants = (gone_s if at_s is None else at_s for at_s, gone_s in pairs)
        return np.array([np.inf if at_s is None else at_s for at_s in instants], np.float64)

    def lived_s(self, edges_s: Floats, since: str = "ready_s", until: str = "gone_s") -> Floats:
        """Return how long each replica was there in each interval, `(n_replicas, n_intervals)`."""
        low_s = np.maximum(edges_s[:-1], self.at_s(since)[:, None])
        high_s = np.minimum(edges_s[1:], self.at_s(until)[:, None])
        lived_s: Floats = np.maximum(high_s - low_s, 0.0)
        return lived_s

    def lived_frac(self, span_s: Span, since: str = "ready_s", until: str = "gone_s") -> Floats:
        """Return the share of a span in which each replica was there, `(n_replicas,)`; 1 where it has no length."""
        start_s, end_s = span_s
        if not end_s > start_s:
            return np.ones(len(self.members))
        return self.lived_s(np.array(span_s), since, until)[:, 0] / (end_s - start_s)

    def gpus_by_pool(self, span_s: Span, since: str = "ordered_s", until: str = "gone_s") -> Floats:
        """Return the mean GPUs of each pool in a span, `(n_pools,)`; a replica has its GPUs from its order on."""
        gpus = self.gpus * self.lived_frac(span_s, since, until)
        by_pool: Floats = np.bincount(np.array(self.facts.replica_pool, np.int64), gpus, len(self.facts.pools)).astype(
            np.float64
        )
        return by_pool

    def gpu_seconds(self, since: str = "ordered_s", until: str = "gone_s") -> float:
        """Return the GPU time of the whole run."""
        end_s = self.facts.end_s
        return end_s * float(self.gpus_by_pool((0.0, end_s), since, until).sum())

    def by_state(self) -> FleetTimeJson:
        """Return the GPU time of the whole run by the state of replicas."""
        return FleetTimeJson(
            standby_gpu_s=self.gpu_seconds(until="called_s"),
            starting_gpu_s=self.gpu_seconds(until="ready_s") - self.gpu_seconds(until="called_s"),
            serving_gpu_s=self.gpu_seconds("ready_s", "draining_s"),
            draining_gpu_s=self.gpu_seconds("draining_s"),
        )

    def table(self) -> Columns:
        """Return the table of members."""
        reasons = tuple(dict.fromkeys(member.why for member in self.members))
        columns: Columns = {
            "replica": np.arange(len(self.members), dtype=np.int32),
            "pool": Categorical(
                np.array(self.facts.replica_pool, np.int32), tuple(pool.name for pool in self.facts.pools)
            ),
            "why": Categorical(np.array([reasons.index(member.why) for member in self.members], np.int32), reasons),
            "gpus": self.gpus.astype(np.int32),
        }
        for name in INSTANTS:
            columns[name] = np.array([getattr(member, name) for member in self.members], np.float64)
        return columns
