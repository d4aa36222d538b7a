"""Error budget: the expected minutes of a month below the goal, by the spares of a pool."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import NamedTuple

import numpy as np

from simserve.metrics.answers.resilience import FleetState, Group, SizedFleet, SpareKind, SpareOption, Transient

MONTH_S = 30 * 86_400.0
MONTH_MIN = MONTH_S / 60
MOST_MARGIN = 1000.0
LEAST_FRAC = 1e-9
"""Share of time from which on a state is listed: 2.6 ms of a month."""

NO_FLEET = SizedFleet(replicas=0, attained_frac=0.0, n_seeds=0, reason=None, decision=None)


class Threat(NamedTuple):
    """A kind of failure that a pool has."""

    what: str
    mtbf_s: float
    """[s] Mean time between failures of one unit."""
    source: str
    """Where that is from."""
    per_s: float
    """[/s] Failures of one group of replicas."""
    n_lost: int
    """Replicas of a group, which are lost together, in a pool that is large enough; 0 where one is slow."""
    detect_s: float
    """[s] Time until it is known."""
    start_s: float
    """[s] Time of a typical start on GPUs that are there, or that a replica is slow."""
    new_s: float
    """[s] Time until a machine and its image are there; 0 for a process, which has them."""
    speed_frac: float | None = None
    """[share] Speed that a slow replica has left; None where replicas are lost."""
    migrate: str = "none"
    """What becomes of requests of which tokens were sent."""

    @property
    def repair_s(self) -> float:
        """[s] Time until a lost replica serves again, without spares."""
        return self.detect_s + self.start_s + self.new_s

    @property
    def odds(self) -> float:
        """Time that a group is down over time that it is up."""
        return self.per_s * self.repair_s

    def of(self, n: int) -> tuple[int, float]:
        """Return how many of n replicas it takes, and how often a month it does."""
        n_lost = min(self.n_lost, n)
        return n_lost, self.per_s * n / max(1, n_lost) * MONTH_S

    def longer(self, length_s: float) -> float:
        """Return how often a time of being slow has the longest one that fits into a load, half of it."""
        return 1.0 if self.speed_frac is None else max(1.0, 2 * self.repair_s / length_s)


def down_shares(n: int, odds: Sequence[tuple[int, float]]) -> list[float]:
    """Return the shares of time with 0, 1, ... of n replicas down, by sizes of groups with their odds to be down.

    The replicas of a group fail and return together, and smaller groups within it fail while it is up. Each group is up
    and down on its own, which is binomial for groups of one size, however repair times are distributed.
    """
    if not odds:
        return [1.0] + [0.0] * n
    most = min(n, max(size for size, _ in odds))
    down = sum(each for size, each in odds if size >= most)
    smaller, shares = [(size, each) for size, each in odds if size < most], np.ones(1)
    for size in [most] * (n // most) + [n % most] * (n % most > 0):
        of_group = np.array(down_shares(size, smaller)) / (1 + down)
        of_group[size] += down / (1 + down)
        shares = np.convolve(shares, of_group)
    return shares.tolist()


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
    transients: Sequence[Transient] = ()
    is_scaled: bool = False
    """Whether an autoscaler replaces what fails: failures cost what their runs say, and spares are warm."""

    @property
    def minutes(self) -> float:
        """Return the minutes of a month that may be below the goal."""
        return (1 - self.goal_frac) * MONTH_MIN

    def options(self, spares: Sequence[int]) -> list[SpareOption]:
        """Return what the pool attains by its spares."""
        kinds: Sequence[SpareKind] = ("warm",) if self.is_scaled else ("active", "warm", "cold")
        options = [self._option(spare, kind) for spare in spares for kind in (kinds if spare else ("none",))]
        return [each.model_copy(update={"margin": self._margin(each) if each.holds else None}) for each in options]

    def _option(self, spare: int, kind: SpareKind) -> SpareOption:
        """Return what the pool attains; failures cost what they do in the largest fleet of at most so many replicas."""
        serves, group = self.n + spare * (kind == "active"), self.group(spare, kind)
        monthly = {threat.what: threat.of(serves)[1] for threat in self.threats}
        upsets = [(monthly[each.what], *self._beyond(each)) for each in self.transients if each.group == group]
        states = [self.state(*each) for each in sorted(self._shares(spare, kind).items(), reverse=True)]
        state_min = MONTH_MIN * sum(each.time_frac for each in states if each.is_below)
        transient_min = sum(n * below_s for n, _, below_s in upsets) / 60
        missed = sum(n * n_missed for n, n_missed, _ in upsets)
        attained = sum(each.time_frac * each.attained_frac for each in states)
        minutes = min(MONTH_MIN, state_min + transient_min)
        return SpareOption(
            spare=spare,
            kind=kind,
            migrate=self.threats[0].migrate,
            holds=minutes <= self.minutes,
            minutes=minutes,
            state_minutes=state_min,
            transient_minutes=transient_min,
            attained_frac=min(1.0, max(0.0, attained - missed / (self.requests_per_s * MONTH_S))),
            failures=sum(monthly.values()),
            usd_per_hour=spare * self.usd_per_hour,
            states=[each for each in states if each.time_frac >= LEAST_FRAC],
        )

    def group(self, spare: int, kind: SpareKind) -> Group | None:
        """Return the largest fleet of at most so many replicas and warm spares that was run with failures."""
        most = self.n + spare * (kind == "active"), spare * (kind == "warm")
        known = [each.group for each in self.transients if each.group <= most and each.warm <= most[1]]
        return max(known, default=None)

    def _shares(self, spare: int, kind: SpareKind) -> Mapping[int, float]:
        """Return the shares of time by the replicas that serve. Warm and cold spares cover what is being replaced; each
        failure leaves a gap until one has taken over. A process starts again as soon as a cold spare would."""
        stands_by, every = kind in ("warm", "cold"), self.n + spare
        if self.is_scaled:
            return {self.n: 1.0}
        lossy = [threat for threat in self.threats if threat.n_lost]  # slow ones count by their transients alone
        replaced = [threat for threat in lossy if threat.new_s or kind != "cold"]
        shares: defaultdict[int, float] = defaultdict(float)
        for n_down, share in enumerate(down_shares(every, [(each.n_lost, each.odds) for each in replaced])):
            shares[min(self.n if stands_by else every, every - n_down)] += share
        for threat in lossy if stands_by else ():
            n_lost, monthly = threat.of(self.n)
            after = min(self.n, every - n_lost) if threat in replaced else self.n
            gap_s = threat.detect_s + (threat.start_s if kind == "cold" else 0.0)
            gap = min(shares[after], monthly * gap_s / MONTH_S)
            shares[after] -= gap
            shares[self.n - n_lost] += gap
        return shares

    def state(self, serving: int, time_frac: float = 0.0) -> FleetState:
        """Return what so many replicas attain, as the largest fleet of at most as many that was run."""
        fleet = self.fleets.get(max((size for size in self.fleets if size <= serving), default=0), NO_FLEET)
        attained, decision = fleet.attained_frac or 0.0, fleet.decision
        return FleetState(
            serving=serving,
            time_frac=min(1.0, time_frac),
            r=None if decision is None or fleet.replicas != serving else decision.r,
            attained_frac=attained,
            is_below=decision is None or decision.word == "saturated" or attained < self.goal_frac,
        )

    def _beyond(self, one: Transient) -> tuple[float, float]:
        """Return the requests and seconds below the goal that a failure costs beyond the state until its repair."""
        n_left = one.replicas if self.is_scaled else one.replicas - one.n_lost
        whole, left = self.state(one.replicas), self.state(n_left)
        missed = (whole.attained_frac - left.attained_frac) * self.requests_per_s * one.repair_s
        below_s = one.repair_s if left.is_below else 0.0
        return max(0.0, (one.missed.value or 0.0) - missed), max(0.0, (one.below_s.value or 0.0) - below_s)

    def _margin(self, option: SpareOption) -> float:
        """Return the factor on all rates up to which the budget holds."""
        low, high = 1.0, MOST_MARGIN
        while high / low > 1.02:
            middle = sqrt(low * high)
            often = replace(self, threats=[each._replace(per_s=middle * each.per_s) for each in self.threats])
            low, high = (middle, high) if often._option(option.spare or 0, option.kind).holds else (low, middle)
        return MOST_MARGIN if high == MOST_MARGIN else low
