"""Error budget: the expected minutes of a month below the goal, by the spares of a pool."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Literal, NamedTuple

from simserve.metrics.answers.resilience import FleetState, SizedFleet, SpareOption
from simserve.study.resilience.failures import MONTH_S, Threat, down_shares

MONTH_MIN = MONTH_S / 60
MOST_MARGIN = 1000.0
LEAST_FRAC = 1e-9
"""Share of time from which on a state is listed: 2.6 ms of a month."""

SpareKind = Literal["none", "active", "warm", "cold"]

Group = tuple[int, int]
"""Replicas that serve, and warm spares beside them."""


class Upset(NamedTuple):
    """What one failure costs, means over seeds."""

    missed: float
    """Requests."""
    below_s: float
    """[s] Time below the SLO."""


@dataclass(frozen=True)
class ErrorBudget:
    """A pool with its failures, and what it attains with some of its replicas."""

    n: int
    """Replicas without spares."""
    threats: Sequence[Threat]
    fleets: Mapping[int, SizedFleet]
    """Fleets that were run, by their replicas."""
    goal_frac: float
    requests_per_s: float
    usd_per_hour: float
    """[USD/h] Price of a replica."""
    upsets: Mapping[Group, Mapping[str, Upset]]
    """What failures cost, by what was there before them and by kind."""

    @property
    def minutes(self) -> float:
        """Return the minutes of a month that may be below the goal."""
        return (1 - self.goal_frac) * MONTH_MIN

    def options(self, spares: Sequence[int]) -> list[SpareOption]:
        """Return what the pool attains by its spares."""
        kinds: Sequence[SpareKind] = ("active", "warm", "cold")
        every = [(k, kind) for k in spares for kind in (kinds if k else ("none",))]
        options = [self.option(k, kind) for k, kind in every]
        return [each.model_copy(update={"margin": self._margin(each) if each.holds else None}) for each in options]

    def option(self, spare: int, kind: SpareKind) -> SpareOption:
        """Return what the pool attains with so many spares of a kind."""
        serves = self.n + spare if kind == "active" else self.n
        shares = self._shares(spare, kind)
        monthly = {threat.what: threat.of(serves)[1] for threat in self.threats}
        group = (serves, spare if kind == "warm" else 0)
        known = max((each for each in self.upsets if each <= group and each[1] <= group[1]), default=(self.n, 0))
        upsets = {threat.what: self._beyond(threat, known) for threat in self.threats}
        states = [self._state(serving, share) for serving, share in sorted(shares.items(), reverse=True)]
        state_min = MONTH_MIN * sum(each.time_frac or 0.0 for each in states if each.is_below)
        transient_min = sum(n * upsets[what].below_s for what, n in monthly.items()) / 60
        missed = sum(n * upsets[what].missed for what, n in monthly.items())
        attained = sum((each.time_frac or 0.0) * (each.attained_frac or 0.0) for each in states)
        minutes = min(MONTH_MIN, state_min + transient_min)
        return SpareOption(
            spare=spare,
            kind=kind,
            holds=minutes <= self.minutes,
            minutes=minutes,
            state_minutes=state_min,
            transient_minutes=transient_min,
            attained_frac=min(1.0, max(0.0, attained - missed / (self.requests_per_s * MONTH_S))),
            failures=sum(monthly.values()),
            usd_per_hour=spare * self.usd_per_hour,
            states=[each for each in states if (each.time_frac or 0.0) >= LEAST_FRAC],
        )

    def _shares(self, spare: int, kind: SpareKind) -> dict[int, float]:
        """Return the shares of time by the replicas that serve.

        Warm and cold spares cover what is being replaced; each failure leaves a gap until one has taken over. A process
        starts again as soon as a cold spare would.
        """
        stands_by = kind in ("warm", "cold")
        losses = [threat.loss for threat in self.threats if threat.new_s or kind != "cold"]
        shares: defaultdict[int, float] = defaultdict(float)
        for n_down, share in enumerate(down_shares(self.n + spare, losses)):
            shares[min(self.n if stands_by else self.n + spare, self.n + spare - n_down)] += share
        for threat in self.threats if stands_by else ():
            n_lost, monthly = threat.of(self.n)
            gap = min(
                shares[self.n], monthly * (threat.failure.detect_s if kind == "warm" else threat.back_s) / MONTH_S
            )
            shares[self.n] -= gap
            shares[self.n - n_lost] += gap
        return dict(shares)

    def _state(self, serving: int, share: float) -> FleetState:
        same = self.fleets.get(serving)
        decision = None if same is None else same.decision
        return FleetState(
            serving=serving,
            time_frac=share,
            r=None if decision is None else decision.r,
            attained_frac=self._attained(serving),
            is_below=self.is_below(serving),
        )

    def _fleet(self, size: int) -> SizedFleet | None:
        """Return the largest fleet that was run of at most so many replicas."""
        return self.fleets.get(max((each for each in self.fleets if each <= size), default=0))

    def _attained(self, size: int) -> float:
        fleet = self._fleet(size)
        return 0.0 if fleet is None else fleet.attained_frac or 0.0

    def is_below(self, size: int) -> bool:
        """Return whether so many replicas are below the goal."""
        fleet = self._fleet(size)
        if fleet is None or fleet.decision is None:
            return True
        return fleet.decision.word == "saturated" or self._attained(size) < self.goal_frac

    def _beyond(self, threat: Threat, group: Group) -> Upset:
        """Return what a failure costs a fleet beyond what it misses with the rest of its replicas until the repair."""
        upset, (size, warm) = self.upsets.get(group, {}).get(threat.what, Upset(0.0, 0.0)), group
        n_lost, out_s = threat.of(size)[0], threat.repair_s if not warm else threat.failure.detect_s
        missed = (self._attained(size) - self._attained(size - n_lost)) * self.requests_per_s * out_s
        below_s = out_s if self.is_below(size - n_lost) else 0.0
        return Upset(max(0.0, upset.missed - missed), max(0.0, upset.below_s - below_s))

    def _margin(self, option: SpareOption) -> float:
        """Return the factor on all rates up to which the budget holds."""
        low, high = 1.0, MOST_MARGIN
        while high / low > 1.02:
            middle = sqrt(low * high)
            often = replace(self, threats=[threat.times(middle) for threat in self.threats])
            low, high = (middle, high) if often.option(option.spare or 0, option.kind).holds else (low, middle)
        return MOST_MARGIN if high == MOST_MARGIN else low
