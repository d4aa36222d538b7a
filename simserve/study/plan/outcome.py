"""Plan outcome: what came of one option: the fewest replicas of it that a demand needs, or why no number will do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from simserve.errors import Problem, SimserveError
from simserve.metrics.decision import decide
from simserve.study.capacity.boundary import FIRST_SEEDS
from simserve.study.load_scale import at_scale
from simserve.study.plan.demand import Demand
from simserve.study.plan.fleet_search import FleetSearch, RunsOf, Trial
from simserve.study.plan.options import Fleets, Option, Replicas
from simserve.study.plan.unloaded import Unloaded, unloaded
from simserve.study.run_seeds import Summary, replicate

GUESSES = (1 / 2, 1 / 4, 1 / 8, 1 / 16)
"""Shares of the demand that the least fleet is tried with, so that the search begins near its end."""

NEAR = 1.4
"""How much more than the largest of them that holds it may hold, for they are twice apart; and larger fleets pool."""

State = Literal["holds", "too slow", "too many", "refused"]


@dataclass(frozen=True)
class Bounds:
    """What a fleet must be."""

    goal_frac: float
    spare: int
    """Replicas, of each pool, that may be down while the goal holds."""
    max_gpus: int
    """GPUs of the fleet, those of spare replicas included."""

    def limit(self, option: Option, gpus_per_replica: int) -> int:
        """The largest size, as `FleetSearch` counts it; below 1: none is allowed."""
        n_replicas = self.max_gpus // gpus_per_replica - self.spare * option.n_pools
        return n_replicas - (option.n_pools - 1)

    def with_spare(self, replicas: Replicas) -> Replicas:
        """What is bought where so many are needed."""
        return tuple(n + self.spare for n in replicas)


@dataclass(frozen=True)
class Sized:
    """The fewest replicas of an option that surely meet the SLO, and what they do."""

    fleets: Fleets
    search: FleetSearch
    size: int
    """As `FleetSearch` counts it."""
    needed: Trial
    """The fewest, under the demand: what is up when as many are down as may be."""
    fewer: Trial | None
    """One fewer; None: that is none."""
    tied: Trial | None
    """The smallest fleet on the edge; None where one fewer surely misses the SLO."""
    all_up: Trial
    """Trial of the fleet with its spares."""
    usage: Trial
    """Trial of the fleet under the mean demand."""


@dataclass(frozen=True)
class OptionOutcome:
    """What came of an option."""

    option: Option
    state: State
    sized: Sized | None = None
    """Where it holds."""
    problem: Problem | None = None
    """Where it is refused."""
    unloaded: Unloaded | None = None
    """What a request gets that has the least fleet for itself; None where that is not known."""
    nearest: Trial | None = None
    """The largest fleet that is allowed, where that does not hold either."""
    fleets: Fleets | None = None
    """None where there are none."""


def outcome_of(option: Option, result: Fleets | Problem, demand: Demand, bounds: Bounds) -> OptionOutcome:
    """Search for the fewest replicas."""
    if isinstance(result, Problem):
        return OptionOutcome(option, "refused", problem=result)
    try:
        by_itself = unloaded(result.least)
    except SimserveError as error:
        return OptionOutcome(option, "refused", problem=Problem(option.name, str(error)))
    known = OptionOutcome(option, "too slow", unloaded=by_itself, fleets=result)
    if by_itself is not None and decide((0.0, by_itself.high_frac), bounds.goal_frac) == "missed":
        return known
    search = FleetSearch(runs_of(result), bounds.goal_frac, seeds_of(demand), is_disaggregated=option.is_disaggregated)
    return sized(known, search, demand, bounds)


def sized(known: OptionOutcome, search: FleetSearch, demand: Demand, bounds: Bounds) -> OptionOutcome:
    """Search for the fewest replicas, whatever it is that runs; `known`: what was learned so far."""
    assert known.fleets is not None, "an option that is tried has fleets"
    option, fleets = known.option, known.fleets
    limit = bounds.limit(option, fleets.gpus_per_replica)
    size = search.fewest(_guess(option, search), limit) if limit > 0 else None
    if size is None:
        nearest = search.best(limit) if limit > 0 else None
        return OptionOutcome(option, "too many", unloaded=known.unloaded, nearest=nearest, fleets=fleets)
    needed = search.best(size)
    bought = bounds.with_spare(needed.replicas)
    result = Sized(
        fleets,
        search,
        size,
        needed,
        fewer=search.best(size - 1) if size > 1 else None,
        tied=search.tied(size),
        all_up=search.trial(bought),
        usage=search.trial(bought, demand.mean_load_frac),
    )
    return OptionOutcome(option, "holds", result, unloaded=known.unloaded, fleets=fleets)


def _guess(option: Option, search: FleetSearch) -> int:
    """A size that may be the answer, from the largest share of the demand that the least fleet holds."""
    least = (1,) * option.n_pools
    held = next((share for share in GUESSES if search.may_hold(least, share)), GUESSES[-1] / 2)
    return max(1, math.ceil(1 / (held * NEAR)) * option.n_pools - (option.n_pools - 1))


def runs_of(fleets: Fleets) -> RunsOf:
    """Simulate."""

    def runs(replicas: Replicas, scale: float, seeds: Sequence[int]) -> list[Summary]:
        fleet = fleets.of(replicas)
        return replicate([fleet if scale == 1 else at_scale(fleet, scale)], seeds)[0]

    return runs


def seeds_of(demand: Demand) -> range:
    """Return the seeds that every fleet is tried with; one where all would be alike."""
    first = demand.sized.seed
    return range(first, first + (1 if demand.is_deterministic else FIRST_SEEDS))
