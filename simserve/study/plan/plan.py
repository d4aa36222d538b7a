"""Plan: the cheapest fleet that serves a demand, of the kinds that are compared, and what growth makes of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from simserve.scenario import Scenario
from simserve.study.capacity.question import check_slo
from simserve.study.plan.cost import FleetCost, cost_of
from simserve.study.plan.demand import Demand, demand_of
from simserve.study.plan.growth import Need, hours_of, months_of, need_of, outgrown_month
from simserve.study.plan.options import checked, options, usd_per_gpu_hour
from simserve.study.plan.outcome import Bounds, OptionOutcome, Sized, outcome_of
from simserve.units import HOURS_A_MONTH
from simserve.workload.load import offered_load

OnProgress = Callable[[str], None]
"""Called with what is looked at next."""


@dataclass(frozen=True)
class PlanQuestion:
    """What is asked."""

    scenario: Scenario
    """Its load is the demand, its SLO what is to hold."""
    bounds: Bounds
    gpus: Sequence[str] = ()
    """Cards to compare; none: the scenario's own."""
    tensors: Sequence[int] = (1, 2, 4, 8)
    is_split: bool = False
    """Prefill and decode on replicas of their own are compared, too."""
    growth_frac: float = 0.0
    """Growth of the demand per month."""
    months: int = 12
    """How far growth is looked at."""
    given_usd: Mapping[str, float] = field(default_factory=dict)
    """An hour of a card, instead of the catalog's price."""

    @property
    def scales(self) -> list[float]:
        """Times today's demand, in each month from today on."""
        return [(1 + self.growth_frac) ** month for month in range(self.months + 1)]


@dataclass(frozen=True)
class Choice:
    """An option that holds."""

    outcome: OptionOutcome
    sized: Sized
    cost: FleetCost
    outgrown_month: int | None = None
    """None: none of them, or the demand does not grow."""
    at_end: Need | None = None
    """After the last month; None: the demand does not grow."""

    @property
    def order(self) -> tuple[float, float]:
        """The less, the better."""
        return self.cost.usd_per_month, self.cost.usd_per_million(self.cost.good_tokens).value


@dataclass(frozen=True)
class Plan:
    """The answer."""

    requested: PlanQuestion
    demand: Demand
    usd_per_gpu_hour: Mapping[str, float]
    choices: tuple[Choice, ...]
    """What holds, the one to take first."""
    others: tuple[OptionOutcome, ...]
    """What does not."""
    months: tuple[Need, ...] = ()
    """Needs of the recommended option by month from today; empty unless the demand grows."""
    hours: tuple[Need, ...] = ()
    """Needs of the recommended option by hour; empty unless the load is diurnal."""

    @cached_property
    def best(self) -> Choice | None:
        """The one to take; None: nothing holds."""
        return self.choices[0] if self.choices else None


def find_plan(requested: PlanQuestion, progress: OnProgress | None = None) -> Plan:
    """Search. Raises SimserveError where there is no demand, no SLO or no such card; TraceError for an empty load."""
    check_slo(requested.scenario)
    demand = demand_of(requested.scenario)
    offered_load(demand.sized.workload, demand.sized.seed, demand.sized.base_dir)  # refuses a load without requests
    compared = options(requested.scenario, requested.gpus, requested.tensors, is_split=requested.is_split)
    usd = usd_per_gpu_hour(compared, requested.given_usd)
    outcomes = []
    for place, (option, fleets) in enumerate(checked(demand.sized, compared).items(), 1):
        if progress:
            progress(f"option {place} of {len(compared)}: {option.name}")
        outcomes.append(outcome_of(option, fleets, demand, requested.bounds))
    return planned(requested, demand, usd, outcomes, progress=progress)


def planned(
    requested: PlanQuestion,
    demand: Demand,
    usd: Mapping[str, float],
    outcomes: Sequence[OptionOutcome],
    *,
    progress: OnProgress | None = None,
) -> Plan:
    """Rank what came of the options, and follow those that hold as the demand grows and over the hours."""
    held = [(each, each.sized) for each in outcomes if each.sized is not None]
    choices = [Choice(each, sized, cost_of(sized, usd[each.option.gpu])) for each, sized in held]
    ranked = sorted(choices, key=lambda choice: choice.order)
    others = tuple(each for each in outcomes if each.sized is None)
    if not ranked:
        return Plan(requested, demand, usd, (), others)
    if progress:
        progress(f"months and hours of {ranked[0].outcome.option.name}")
    hours = hours_of(ranked[0].sized, demand, requested.bounds)
    if not requested.growth_frac:
        return Plan(requested, demand, usd, tuple(ranked), others, (), hours)
    months = tuple(months_of(ranked[0].sized, requested.scales, requested.bounds))
    return Plan(
        requested, demand, usd, tuple(_followed(requested, ranked, months[-1], progress)), others, months, hours
    )


def _followed(
    requested: PlanQuestion, ranked: Sequence[Choice], end: Need, progress: OnProgress | None
) -> Iterator[Choice]:
    """Yield the options, with growth for those that may cost less than the first in the end."""
    most = usd_of(ranked[0], end)
    for choice in ranked:
        if most is not None and choice.cost.usd_per_month > most:
            yield choice
            continue
        if progress:
            progress(f"growth of {choice.outcome.option.name}")
        at_end = need_of(choice.sized, requested.scales[-1], requested.bounds)
        yield replace(choice, at_end=at_end, outgrown_month=outgrown_month(choice.sized, requested.scales))


def gpus_of(choice: Choice, need: Need) -> int | None:
    """What some time needs of an option; None: more than are allowed."""
    return None if need.n_replicas is None else need.n_replicas * choice.sized.fleets.gpus_per_replica


def usd_of(choice: Choice, need: Need) -> float | None:
    """A month of that."""
    gpus = gpus_of(choice, need)
    return None if gpus is None else gpus * choice.cost.usd_per_gpu_hour * HOURS_A_MONTH
