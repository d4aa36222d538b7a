"""Basis: what the figures of a run are computed from: its tables and facts, and what several figures share."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Protocol

from simserve.metrics.answers.parts import NominalLoad
from simserve.metrics.classes import GroupJson, Latencies, by_class, class_cautions, class_names
from simserve.metrics.decision import Decision
from simserve.metrics.goal import GOAL_FRAC
from simserve.metrics.goodput import AttainmentJson, FatesJson, attainment, outcomes, throughput
from simserve.metrics.kv import kv_use, reservation
from simserve.metrics.kv_json import KvUseJson, reservation_warnings
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.reliability import TrustJson, cautions, reliability, steadiness
from simserve.metrics.scaling import ScalingJson, scaling, scaling_warnings
from simserve.metrics.stats import Distribution, TailJson
from simserve.metrics.storms import StormJson, storm_warnings, storms
from simserve.metrics.tails import Sample, in_groups, tails_of
from simserve.metrics.utilization import Utilization
from simserve.metrics.window import ArrivalRates, Window, drawn_load, load_warning
from simserve.tables.columns import Columns, Flags
from simserve.tables.facts import RunFacts


class Measured(Protocol):
    """What a decision does not need; each is measured when it is first asked for."""

    def latency(self, name: str) -> Distribution:
        """Return a latency of the window's finished requests."""

    @property
    def latencies_of(self) -> Latencies:
        """The latencies of some of them."""

    @property
    def split(self) -> Columns:
        """All requests, with the parts of their time."""

    @property
    def use(self) -> Utilization:
        """The use of replicas."""


@dataclass(frozen=True)
class RunBasis:
    """The tables of a run with their derived columns, and what was measured of them."""

    requests: Columns
    spans: Columns
    steps: Columns
    facts: RunFacts
    window: Window
    met: Mapping[str, Flags]
    """Masks of the requests that met each goal."""
    arrivals: ArrivalRates | None
    """Nominal and drawn load; None: unknown."""
    measured: Measured

    @cached_property
    def outcomes(self) -> FatesJson:
        """The window's requests by what became of them."""
        return outcomes(self.requests, self.window, offered=len(self.requests["arrival_s"]))

    @cached_property
    def rates(self) -> dict[str, float]:
        """Rates of requests and tokens."""
        return throughput(self.requests, self.window)

    @cached_property
    def load(self) -> NominalLoad:
        """Drawn against nominal load."""
        return drawn_load(self.window, self.arrivals, self.rates["offered_per_s"])

    @cached_property
    def attained(self) -> AttainmentJson | None:
        """The share of requests that met every SLO; None without an SLO."""
        return attainment(self.requests, self.window, self.met)

    @cached_property
    def classes(self) -> dict[str, GroupJson] | None:
        """The results of each class; None without classes."""
        return by_class(self.requests, self.facts, self.window, self.met, self.measured.latencies_of)

    @cached_property
    def kv(self) -> KvUseJson:
        """The use of KV blocks."""
        return kv_use(self.facts, reservation(self.requests, self.steps, self.facts, self.window))

    @cached_property
    def lives(self) -> Lifetimes:
        """When replicas were there."""
        return Lifetimes(self.facts)

    @cached_property
    def trust(self) -> TrustJson:
        """The flags that tell which numbers to trust."""
        there_frac = self.lives.lived_frac((self.window.start_s, self.window.end_s))
        queue = steadiness(self.requests, self.steps, self.window, self.facts.replica_pool, there_frac)
        return reliability(self.facts, self.window, queue, self.outcomes.finished)

    @cached_property
    def scaling(self) -> ScalingJson | None:
        """What happened to a fleet that changed; None for a fixed one."""
        return scaling(self.requests, self.facts, self.met)

    @cached_property
    def storm(self) -> StormJson | None:
        """Load by retries; None without any."""
        return storms(self.requests, self.lives)

    @property
    def tails(self) -> list[TailJson]:
        """How close the requests of each class come to their limits."""
        return [] if self.decision is None else [in_groups(*item) for item in self.decision.whole.tails.items()]

    @cached_property
    def decision(self) -> Decision | None:
        """The decision about the SLO by this run alone, as if costs were exact; None without an SLO or requests."""
        tails = tails_of(self.requests, self.facts, class_names(self.requests, self.facts))
        state = "growing" if self.trust.saturated else self.trust.steady
        judged_frac = sum(tail.n for tail in tails.values()) / max(1, self.window.n_requests)
        n_effective = max(1.0, judged_frac * (self.trust.n_effective or 1.0))
        sample = Sample(tails, n_effective, state, self.load.off_frac)
        return Decision([sample], GOAL_FRAC) if tails else None

    @property
    def warnings(self) -> list[str]:
        """What to know before one trusts the numbers."""
        texts = (
            self.facts.warnings,
            reservation_warnings([self.kv]),
            load_warning(self.load),
            cautions(self.trust, self.facts, self.window, self.outcomes.finished),
            class_cautions(self.classes),
            scaling_warnings(self.scaling, self.requests, self.facts),
            storm_warnings(self.storm),
        )
        return list(chain(*texts))
