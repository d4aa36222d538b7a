"""OptionOutcome of one option: the fewest replicas that meet the SLO, or why none do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from simserve.errors import Problem, SimserveError
from simserve.metrics.answer import decide
from simserve.metrics.answers.plan_option import OptionAlone
from simserve.metrics.decision import DEFAULT_EFFORT, Effort
from simserve.metrics.goal import wilson
from simserve.metrics.goodput import GOALS
from simserve.scenario import Scenario
from simserve.simulation import simulate
from simserve.study.capacity.boundary import FIRST_SEEDS
from simserve.study.drawn_costs import DrawnCosts
from simserve.study.fleet import at_scale
from simserve.study.intervals import Z_95
from simserve.study.plan.fleet_search import CostsOf, FleetSearch, RunsOf, Trial
from simserve.study.plan.options import Demand, Fleets, Option, Replicas
from simserve.study.run_seeds import STUDIED, Run, each_run
from simserve.workload.load import Load, offered_load

GUESSES = (1 / 2, 1 / 4, 1 / 8, 1 / 16)
"""Shares of the demand at which the least fleet is tried first, to start the search near the answer."""

NEAR = 1.4
"""Factor on the largest share met: shares double, and larger fleets pool load."""

N_REQUESTS = 1000
"""Requests of the load to send one at a time."""

READ = (*STUDIED, "busy_frac", "transfer")
"""Figures that a plan reads of each run."""

SPACING_S = 200.0
"""Time between two requests, so that they do not share a batch."""

UNKNOWN = OptionAlone()
"""What is known of requests sent one at a time where that tells nothing."""

State = Literal["holds", "too slow", "too many", "refused"]


@dataclass(frozen=True)
class Bounds:
    """Limits on a fleet."""

    goal_frac: float
    spare: int
    """Replicas of each pool that may be down while the goal holds."""
    max_gpus: int
    """GPUs of the fleet, including spare replicas."""
    effort: Effort = DEFAULT_EFFORT
    """How sure it should be that the goal holds."""

    def limit(self, option: Option, gpus_per_replica: int) -> int:
        """Return the largest size as `FleetSearch` counts it; below 1, no fleet is allowed."""
        n_replicas = self.max_gpus // gpus_per_replica - self.spare * option.n_pools
        return n_replicas - (option.n_pools - 1)


@dataclass(frozen=True)
class Sized:
    """The fewest replicas of an option that meet the SLO, and their trials."""

    fleets: Fleets
    search: FleetSearch
    size: int
    """Size as `FleetSearch` counts it."""
    needed: Trial
    """The fewest replicas under the demand, with all spares down."""
    fewer: Trial | None
    """The next smaller fleet; None if there is none."""
    tied: Trial | None
    """The smallest statistically tied fleet; None without one."""
    all_up: Trial
    """The needed replicas and the spares that serve under the demand."""
    usage: Trial
    """All replicas under the mean demand."""
    bought: Replicas
    """Replicas to pay for: those and the spares that stand by."""
    standby: str | None = None
    """Kind of the latter, as a pool names it; None without any."""


@dataclass(frozen=True)
class OptionOutcome:
    """Result of one option."""

    option: Option
    state: State
    sized: Sized | None = None
    """Set if the option meets the SLO."""
    problem: Problem | None = None
    """Set if the option is refused."""
    alone: OptionAlone = UNKNOWN
    """What requests attain that are sent one at a time to the least fleet, as far as it is known."""
    nearest: Trial | None = None
    """The largest allowed fleet, if it does not meet the SLO."""
    fleets: Fleets | None = None
    """Fleets of the option; None if refused."""


def outcome_of(option: Option, result: Fleets | Problem, demand: Demand, bounds: Bounds) -> OptionOutcome:
    """Search for the fewest replicas of an option."""
    if isinstance(result, Problem):
        return OptionOutcome(option, "refused", problem=result)
    try:
        alone, high_frac = unloaded(result.least)
    except SimserveError as error:
        return OptionOutcome(option, "refused", problem=Problem(option.name, str(error)))
    known = OptionOutcome(option, "too slow", alone=alone, fleets=result)
    if decide((0.0, high_frac), bounds.goal_frac) == "missed":
        return known
    search = FleetSearch(
        runs_of(result),
        bounds.goal_frac,
        seeds_of(demand),
        is_disaggregated=option.is_disaggregated,
        effort=bounds.effort,
        costs_of=None if bounds.effort.by == "noise" else costs_of(result, demand),
    )
    return sized(known, search, demand, bounds)


def unloaded(scenario: Scenario) -> tuple[OptionAlone, float]:
    """Send requests of the load one at a time to a scenario with the least fleet of an option; return what they attain,
    and the upper end of the 95% interval of their share that meets every SLO.

    Of shared prefixes, sessions and SLO classes, where this is no bound, nothing is known.
    """
    load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
    if load.trace.prefixes is not None or load.trace.dependencies is not None or scenario.slo.classes:
        return UNKNOWN, 1.0
    trace = load.trace.take(slice(N_REQUESTS))
    one_at_a_time = Load(replace(trace, arrival_s=np.arange(len(trace), dtype=np.float64) * SPACING_S))
    measure = scenario.measure.model_copy(update={"warmup_s": 0.0, "warmup_requests": None})
    run = simulate(scenario.model_copy(update={"measure": measure}), load=one_at_a_time)
    attained = run.figures.attained
    slo, slo_frac = min(attained.by_slo.items(), key=lambda item: item[1] or 0.0)
    requests = run.columns["requests"]
    took_s = np.nan_to_num(requests[GOALS[slo]], nan=-np.inf)
    worst = int(took_s.argmax())
    alone = OptionAlone(
        alone_attained_frac=attained.at("frac"),
        alone_slo=slo,
        alone_slo_frac=slo_frac or 0.0,
        alone_refused_frac=run.figures.requests.rejected / attained.n_arrived,
        alone_prompt_tokens=int(requests["prompt_tokens"][worst]),
        alone_took_s=float(requests[GOALS[slo]][worst]),
    )
    return alone, wilson(attained.at("frac"), attained.n_arrived, Z_95)[1]


def sized(known: OptionOutcome, search: FleetSearch, demand: Demand, bounds: Bounds) -> OptionOutcome:
    """Search for the fewest replicas with a mean above the goal; `known` is the result so far."""
    assert known.fleets is not None, "an option that is tried has fleets"
    option = known.option
    limit = bounds.limit(option, known.fleets.gpus_per_replica)
    size = search.fewest(_guess(option, search), limit) if limit > 0 else None
    if size is None:
        return replace(known, state="too many", nearest=search.best(limit) if limit > 0 else None)
    return replace(known, state="holds", sized=_sized(known.fleets, search, size, demand, bounds))


def settled(outcome: OptionOutcome, demand: Demand, bounds: Bounds) -> OptionOutcome:
    """Return an option with seeds added until its size is sure, or the largest fleet allowed stays on the edge."""
    current, fleets = outcome.sized, outcome.fleets
    if current is None or fleets is None:
        return outcome
    limit = bounds.limit(outcome.option, fleets.gpus_per_replica)
    size = current.search.sure(current.size, limit)
    if size is None:
        return replace(outcome, state="too many", sized=None, nearest=current.search.best(limit))
    result = _sized(fleets, current.search, size, demand, bounds)
    return replace(outcome, sized=replace(result, tied=current.search.tied(size)))


def _sized(fleets: Fleets, search: FleetSearch, size: int, demand: Demand, bounds: Bounds) -> Sized:
    needed = search.best(size)
    bought = tuple(n + bounds.spare for n in needed.replicas)
    return Sized(
        fleets,
        search,
        size,
        needed,
        fewer=search.best(size - 1) if size > 1 else None,
        tied=None,
        all_up=search.trial(bought),
        usage=search.trial(bought, demand.mean_load_frac),
        bought=bought,
    )


def _guess(option: Option, search: FleetSearch) -> int:
    """Estimate the size from the largest share of the demand that the least fleet serves."""
    least = (1,) * option.n_pools
    held = next((share for share in GUESSES if search.may_hold(least, share)), GUESSES[-1] / 2)
    return max(1, math.ceil(1 / (held * NEAR)) * option.n_pools - (option.n_pools - 1))


def runs_of(fleets: Fleets) -> RunsOf:
    """Return the function that simulates these fleets."""

    def runs(replicas: Replicas, scale: float, seeds: Sequence[int]) -> list[Run]:
        fleet = fleets.of(replicas)
        return each_run(partial(Run.of, keys=READ), [fleet if scale == 1 else at_scale(fleet, scale)], seeds)[0]

    return runs


def costs_of(fleets: Fleets, demand: Demand) -> CostsOf:
    """Return the function that gives the draws of the costs of these fleets."""

    def costs(replicas: Replicas) -> DrawnCosts:
        fleet = fleets.of(replicas)
        return DrawnCosts.of(fleet, lambda scale: fleet, len(seeds_of(demand)))

    return costs


def seeds_of(demand: Demand) -> range:
    """Return the first seeds of every fleet; one seed for a deterministic load."""
    first = demand.sized.seed
    return range(first, first + (1 if demand.is_deterministic else FIRST_SEEDS))
