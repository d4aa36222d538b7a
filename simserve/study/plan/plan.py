"""Plan: the cheapest fleet that serves a demand, and its growth."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from simserve.scenario import Scenario
from simserve.study.capacity.question import check_slo
from simserve.study.plan.demand import Demand, demand_of
from simserve.study.plan.growth import FleetCost, Need, cost_of, hours_of, needs, outgrown_month
from simserve.study.plan.options import Fleets, checked, options, usd_per_gpu_hour
from simserve.study.plan.outcome import Bounds, OptionOutcome, Sized, outcome_of, settled
from simserve.study.progress import enter
from simserve.units import HOURS_A_MONTH
from simserve.workload.load import offered_load


@dataclass(frozen=True)
class PlanQuestion:
    """Question that a plan answers."""

    scenario: Scenario
    """Scenario with the demand and the SLO."""
    bounds: Bounds
    gpus: Sequence[str] = ()
    """GPUs to compare; empty: the scenario's own."""
    tensors: Sequence[int] = (1, 2, 4, 8)
    is_split: bool = False
    """Whether disaggregated options are compared, too."""
    growth_frac: float = 0.0
    """Growth of the demand per month."""
    months: int = 12
    """Months of growth to plan for."""
    given_usd: Mapping[str, float] = field(default_factory=dict)
    """Dollars per GPU-hour that replace the catalog's prices."""

    @property
    def scales(self) -> list[float]:
        """Return the multiple of today's demand in each month."""
        return [(1 + self.growth_frac) ** month for month in range(self.months + 1)]


@dataclass(frozen=True)
class Choice:
    """Option that meets the SLO."""

    outcome: OptionOutcome
    sized: Sized
    cost: FleetCost
    outgrown_month: int | None = None
    """First month in which the fleet is too small; None if it lasts or the demand does not grow."""
    at_end: Need | None = None
    """Need after the last month; None without growth."""

    @property
    def order(self) -> tuple[float, float]:
        """Return the sort key: monthly cost, then cost per good token."""
        return self.cost.usd_per_month, self.cost.usd_per_million(self.cost.good_tokens).value


@dataclass(frozen=True)
class Plan:
    """Options ranked by cost, with the growth of the best."""

    question: PlanQuestion
    demand: Demand
    usd_per_gpu_hour: Mapping[str, float]
    choices: tuple[Choice, ...]
    """Options that meet the SLO, cheapest first."""
    others: tuple[OptionOutcome, ...]
    """Options that do not meet the SLO."""
    months: tuple[Need, ...] = ()
    """Monthly needs of the best option; empty without growth."""
    hours: tuple[Need, ...] = ()
    """Hourly needs of the best option; empty unless the load is diurnal."""

    @cached_property
    def best(self) -> Choice | None:
        """Return the option to take; None if no option meets the SLO."""
        return self.choices[0] if self.choices else None

    @property
    def winner(self) -> Scenario | None:
        """Return the scenario with the fleet to take, including spare replicas; None if no option meets the SLO."""
        if self.best is None:
            return None
        return Fleets(self.question.scenario, self.best.outcome.option).of(self.best.sized.all_up.replicas)


def find_plan(question: PlanQuestion) -> Plan:
    """Find the plan; raise SimserveError for no demand, SLO or such GPU, TraceError for an empty load."""
    check_slo(question.scenario)
    demand = demand_of(question.scenario)
    offered_load(demand.sized.workload, demand.sized.seed, demand.sized.base_dir)  # refuses an empty load
    compared = options(question.scenario, question.gpus, question.tensors, is_split=question.is_split)
    usd = usd_per_gpu_hour(compared, question.given_usd)
    outcomes = []
    for place, (option, fleets) in enumerate(checked(demand.sized, compared).items(), 1):
        enter(f"option {place} of {len(compared)}: {option.name}")
        outcomes.append(outcome_of(option, fleets, demand, question.bounds))
    return planned(question, demand, usd, settle(outcomes, demand, question.bounds, usd))


def settle(
    outcomes: Sequence[OptionOutcome],
    demand: Demand,
    bounds: Bounds,
    usd: Mapping[str, float],
) -> list[OptionOutcome]:
    """Add seeds, from the cheapest option on, to each that may cost no more than the cheapest sure one."""
    result = {each.option: each for each in outcomes}
    limit = math.inf
    held = [(each.option, each.sized) for each in outcomes if each.sized is not None]
    for option, current in sorted(held, key=lambda each: _least_usd(each[1], usd[each[0].gpu])):
        if _least_usd(current, usd[option.gpu]) > limit:
            break
        enter(f"more seeds of {option.name}")
        result[option] = settled(result[option], demand, bounds)
        sure = result[option].sized
        if sure is not None:
            limit = min(limit, cost_of(sure, usd[option.gpu]).usd_per_hour)
    return list(result.values())


def _least_usd(current: Sized, usd: float) -> float:
    """Return what the smallest fleet that may meet the SLO costs an hour, as far as the first seeds say."""
    n_fewer = current.fewer is not None and current.fewer.decision == "edge"
    return (sum(current.all_up.replicas) - n_fewer) * current.fleets.gpus_per_replica * usd


def planned(
    question: PlanQuestion,
    demand: Demand,
    usd: Mapping[str, float],
    outcomes: Sequence[OptionOutcome],
) -> Plan:
    """Rank the outcomes, and find the monthly and hourly needs of options that meet the SLO."""
    held = [(each, each.sized) for each in outcomes if each.sized is not None]
    choices = [Choice(each, sized, cost_of(sized, usd[each.option.gpu])) for each, sized in held]
    ranked = sorted(choices, key=lambda choice: choice.order)
    others = tuple(each for each in outcomes if each.sized is None)
    if not ranked:
        return Plan(question, demand, usd, (), others)
    enter(f"months and hours of {ranked[0].outcome.option.name}")
    hours = hours_of(ranked[0].sized, demand, question.bounds)
    if not question.growth_frac:
        return Plan(question, demand, usd, tuple(ranked), others, (), hours)
    months = needs(ranked[0].sized, question.scales, question.bounds)
    return Plan(question, demand, usd, tuple(_followed(question, ranked, months[-1])), others, months, hours)


def _followed(question: PlanQuestion, ranked: Sequence[Choice], end: Need) -> Iterator[Choice]:
    """Yield choices with the growth of those that may end cheaper than the first; cost never falls."""
    most = usd_of(ranked[0], end)
    for choice in ranked:
        if most is not None and choice.cost.usd_per_month > most:
            yield choice
            continue
        enter(f"growth of {choice.outcome.option.name}")
        (at_end,) = needs(choice.sized, question.scales[-1:], question.bounds)
        yield replace(choice, at_end=at_end, outgrown_month=outgrown_month(choice.sized, question.scales))


def gpus_of(choice: Choice, need: Need) -> int | None:
    """Return the GPUs that a need takes; None: more than allowed."""
    return None if need.n_replicas is None else need.n_replicas * choice.sized.fleets.gpus_per_replica


def usd_of(choice: Choice, need: Need) -> float | None:
    """Return the monthly cost of a need; None: more GPUs than allowed."""
    gpus = gpus_of(choice, need)
    return None if gpus is None else gpus * choice.cost.usd_per_gpu_hour * HOURS_A_MONTH
