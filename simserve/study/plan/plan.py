"""Plan: the cheapest fleet that serves a demand, and its growth."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from simserve.errors import Problem
from simserve.metrics.answers.fleet_needs import ScaledUse
from simserve.metrics.answers.resilience import ResilienceAnswer, chosen_of
from simserve.scenario import Scenario
from simserve.simulation import simulate
from simserve.study.capacity.question import check_slo
from simserve.study.plan.growth import FleetCost, Need, cost_of, hours_of, needs, outgrown_month
from simserve.study.plan.options import Demand, Fleets, Option, checked, demand_of, options, usd_per_gpu_hour
from simserve.study.plan.outcome import Bounds, OptionOutcome, Sized, outcome_of, settled
from simserve.study.progress import enter
from simserve.units import HOURS_A_MONTH
from simserve.workload.load import offered_load

Ask = Callable[[Scenario, int], ResilienceAnswer]
"""Maps a fleet, and the spares for which GPUs are left, to what failures cost it."""


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
    ask: Ask | None = None
    """What finds the spares of a fleet; None: those of the bounds."""
    autoscaler: Any = None
    """Autoscaler of the fleet to take; fleets are sized without."""

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
    failures: Mapping[Option, ResilienceAnswer] = field(default_factory=dict)
    """What failures cost the options for which spares were looked for."""

    @cached_property
    def best(self) -> Choice | None:
        """Return the option to take; None if no option meets the SLO."""
        return self.choices[0] if self.choices else None

    @property
    def winner(self) -> Scenario | None:
        """Return the scenario with the fleet to take, including spare replicas; None if no option meets the SLO."""
        if self.best is None:
            return None
        sized, fleets = self.best.sized, Fleets(self.question.scenario, self.best.outcome.option)
        fleet = fleets.of(sized.all_up.replicas)
        changes: dict[str, Any] = {"spares": {sized.standby: self.question.bounds.spare}} if sized.standby else {}
        if self.question.autoscaler is not None:
            changes |= {"autoscaler": self.question.autoscaler}
        return fleet.replace(**changes) if changes else fleet

    @cached_property
    def scaled(self) -> ScaledUse | None:
        """Return what the scenario's autoscaler makes of that fleet, by a run; None without one."""
        if self.question.autoscaler is None or self.winner is None or self.best is None:
            return None
        enter("the autoscaler")
        figures = simulate(self.winner).figures
        n_gpus = 0.0 if figures.scaling is None else figures.scaling.mean_gpus or 0.0
        usd = n_gpus * self.best.cost.usd_per_gpu_hour * HOURS_A_MONTH
        return ScaledUse(mean_gpus=n_gpus, usd_per_month=usd, attained_frac=figures.attained.at("frac"))


def find_plan(question: PlanQuestion) -> Plan:
    """Find the plan; raise SimserveError for no demand, SLO or such GPU, TraceError for an empty load."""
    check_slo(question.scenario)
    own = question.scenario.cluster.pools[0].autoscaler
    if own is not None:
        fixed = question.scenario.replace(**{"cluster.pools.0.autoscaler": None})
        question = replace(question, scenario=fixed, autoscaler=own)
    demand = demand_of(question.scenario)
    offered_load(demand.sized.workload, demand.sized.seed, demand.sized.base_dir)  # refuses an empty load
    compared = options(question.scenario, question.gpus, question.tensors, is_split=question.is_split)
    usd = usd_per_gpu_hour(compared, question.given_usd)
    outcomes = []
    for place, (option, fleets) in enumerate(checked(demand.sized, compared).items(), 1):
        enter(f"option {place} of {len(compared)}: {option.name}")
        outcomes.append(outcome_of(option, fleets, demand, question.bounds))
    outcomes = settle(outcomes, demand, question.bounds, usd)
    if question.ask is None:
        return planned(question, demand, usd, outcomes)
    known = {each.option: each for each in outcomes}
    failures, spare = _add_spares(known, demand, usd, question.bounds.max_gpus, question.ask)
    question = replace(question, bounds=replace(question.bounds, spare=spare))
    return replace(planned(question, demand, usd, [*known.values()]), failures=failures)


def _add_spares(
    outcomes: dict[Option, OptionOutcome], demand: Demand, usd: Mapping[str, float], max_gpus: int, ask: Ask
) -> tuple[Mapping[Option, ResilienceAnswer], int]:
    """Give the cheapest option its spares, and each that is cheaper without them; return what failures cost these, and
    how many spares the cheapest has."""
    failures = dict[Option, ResilienceAnswer]()
    while held := {option: each.sized for option, each in outcomes.items() if each.sized is not None}:
        option = min(held, key=lambda each: cost_of(held[each], usd[each.gpu]).order)
        sized = held[option]
        if option in failures:
            return failures, sum(sized.bought) - sum(sized.needed.replicas)
        enter(f"failures of {option.name}")
        n_left = max_gpus // sized.fleets.gpus_per_replica - sum(sized.needed.replicas)
        failures[option] = ask(sized.fleets.of(sized.needed.replicas), n_left)
        outcomes[option] = _with_spares(outcomes[option], sized, failures[option], demand)
    return failures, 0


def _with_spares(outcome: OptionOutcome, sized: Sized, answer: ResilienceAnswer, demand: Demand) -> OptionOutcome:
    """Return an option with the spares that it needs, or without a fleet where none hold the budget."""
    if answer.best is None:
        rule = f"exceeds the error budget with up to {max(each.spare or 0 for each in answer.options)} spares"
        least = chosen_of(answer.options, None).minutes or 0.0
        got = f"{least:.3g} of {answer.budget_minutes or 0.0:.3g} minutes a month"
        problem = Problem("--spare auto", rule, got, "auto:4 allows four; simserve resilience shows why")
        return replace(outcome, state="too many", sized=None, nearest=sized.needed, problem=problem)
    best, needed = answer.options[answer.best], sized.needed.replicas
    bought = (needed[0] + (best.spare or 0),)
    standby = None if best.kind in ("none", "active") else best.kind
    serving, search = needed if standby else bought, sized.search
    all_up, usage = search.trial(serving), search.trial(serving, demand.mean_load_frac)
    return replace(outcome, sized=replace(sized, all_up=all_up, usage=usage, bought=bought, standby=standby))


def settle(
    outcomes: Sequence[OptionOutcome], demand: Demand, bounds: Bounds, usd: Mapping[str, float]
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
    return (sum(current.bought) - n_fewer) * current.fleets.gpus_per_replica * usd


def planned(
    question: PlanQuestion, demand: Demand, usd: Mapping[str, float], outcomes: Sequence[OptionOutcome]
) -> Plan:
    """Rank the outcomes, and find the monthly and hourly needs of options that meet the SLO."""
    held = [(each, each.sized) for each in outcomes if each.sized is not None]
    choices = [Choice(each, sized, cost_of(sized, usd[each.option.gpu])) for each, sized in held]
    ranked = sorted(choices, key=lambda choice: choice.cost.order)
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
