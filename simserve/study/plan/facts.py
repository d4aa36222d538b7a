"""A plan as its answer, for JSON, tables and pages; `report.plan` adds sentences."""

from collections.abc import Iterator

from simserve.metrics.answers import fleet_needs
from simserve.metrics.answers.parts import ScenarioName
from simserve.metrics.answers.plan import PlanAnswer
from simserve.metrics.kv_json import reservation_warnings
from simserve.scenario.cost_warnings import notes, warnings
from simserve.study.capacity.facts import load_warnings, pools_of
from simserve.study.fleet import is_deterministic
from simserve.study.intervals import CONFIDENCE
from simserve.study.plan.growth import Need
from simserve.study.plan.options import OF_ONE_SIZE
from simserve.study.plan.outcome import seeds_of
from simserve.study.plan.plan import Choice, Plan, gpus_of, usd_of
from simserve.study.plan.rows import choice_row, other_row
from simserve.units import HOURS_A_MONTH
from simserve.version import __version__

ENERGY = (
    "the cards' power by their data sheets, at full power while a step runs and at none between steps; "
    "hosts, network and cooling are left out"
)


def plan_facts(plan: Plan) -> PlanAnswer:
    """Return the answer of `simserve plan` without sentences."""
    question, scenario = plan.question, plan.question.scenario
    return PlanAnswer(
        version=__version__,
        scenario=ScenarioName(name=scenario.name, digest=scenario.digest, seed=scenario.seed),
        goal_frac=question.bounds.goal_frac,
        slo=scenario.slo.default.given,
        slo_classes={name: targets.given for name, targets in scenario.slo.classes.items()},
        pools=pools_of(scenario),
        is_repeated=is_deterministic(scenario),
        state="found" if plan.best else "none",
        demand=_demand(plan),
        assumed=_assumed(plan),
        options=[
            *(choice_row(plan, choice, rank) for rank, choice in enumerate(plan.choices, 1)),
            *(other_row(plan, outcome) for outcome in plan.others),
        ],
        spares=plan.failures.get(plan.best.outcome.option) if plan.best else None,
        growth=_growth(plan, plan.best) if plan.best and plan.months else None,
        autoscaling=_autoscaling(plan, plan.best) if plan.best and plan.hours else None,
        scaled=plan.scaled,
        warnings=list(dict.fromkeys([*_of_load(plan), *_of_fleets(plan), *_of_costs(plan)])),
    )


def _demand(plan: Plan) -> fleet_needs.PlanDemand:
    """Return the demand with the rates of the runs; None without runs."""
    trials = [plan.best.sized.needed] if plan.best else [other.nearest for other in plan.others if other.nearest]
    point = trials[0].point if trials else None
    offered, share = None if point is None else point.offered_per_s, plan.demand.mean_load_frac
    return fleet_needs.PlanDemand(
        kind=plan.demand.kind,
        mean_per_s=None if offered is None else offered * share,
        sized_for_per_s=offered,
        mean_load_frac=share,
        load=None if point is None else point.load,
    )


def _assumed(plan: Plan) -> fleet_needs.Assumptions:
    question = plan.question
    return fleet_needs.Assumptions(
        spare_replicas=question.bounds.spare,
        n_failure_runs=sum(each.n_runs or 0 for each in plan.failures.values()) if question.ask else None,
        growth_frac=question.growth_frac,
        months=question.months,
        hours_per_month=HOURS_A_MONTH,
        max_gpus=question.bounds.max_gpus,
        confidence=CONFIDENCE,
        n_seeds=len(seeds_of(plan.demand)),
        usd_per_gpu_hour=plan.usd_per_gpu_hour,
        given_prices=list(question.given_usd),
        energy=ENERGY,
    )


def _growth(plan: Plan, best: Choice) -> fleet_needs.Growth:
    rate = best.sized.needed.point.offered_per_s
    rows = [
        fleet_needs.MonthlyNeed(month=month, offered_per_s=rate * need.scale, **vars(_need(best, need)))
        for month, need in enumerate(plan.months)
    ]
    return fleet_needs.Growth(outgrown_month=best.outgrown_month, rows=rows)


def _autoscaling(plan: Plan, best: Choice) -> fleet_needs.Autoscaling:
    """Return the cost if every hour had the fewest replicas that it needs, without delay."""
    rate = best.sized.needed.point.offered_per_s
    needs = zip(plan.demand.hours, plan.hours, strict=True)
    rows = [
        fleet_needs.HourlyNeed(hour=hour, peak_per_s=rate * share, **vars(_need(best, need)))
        for hour, (share, need) in enumerate(needs)
    ]
    usd = sum(usd_of(best, need) or 0.0 for need in plan.hours) / len(plan.hours)
    return fleet_needs.Autoscaling(
        mean_load_frac=plan.demand.mean_load_frac,
        saves_at_best_frac=1 - usd / best.cost.usd_per_month,
        usd_per_month_at_best=usd,
        rows=rows,
    )


def _need(choice: Choice, need: Need) -> fleet_needs.FleetNeed:
    return fleet_needs.FleetNeed(
        replicas=need.n_replicas, gpus=gpus_of(choice, need), usd_per_month=usd_of(choice, need)
    )


def _of_load(plan: Plan) -> Iterator[str]:
    if plan.demand.kind == "diurnal":
        yield "the load is diurnal: fleets are sized for its highest rate held steady, which is conservative"
    if plan.demand.is_deterministic:
        yield "the load is deterministic, so every seed gives the same run: intervals cover variation within it only"
    best = plan.best
    sized = [] if best is None else [best.sized.fewer, best.sized.needed]
    trials = [trial for trial in (*sized, *(other.nearest for other in plan.others)) if trial is not None]
    yield from reservation_warnings(run.kv for trial in trials for run in trial.point.runs)
    if best is not None:
        yield from load_warnings(best.sized.needed.point)
    if best is not None and any(run.trust.kv_limit_is_a_guess for run in best.sized.needed.point.runs):
        yield "KV cache use reached its estimated capacity; set num_gpu_blocks from a server's log"


def _of_fleets(plan: Plan) -> Iterator[str]:
    """Yield settings of the scenario's fleet that other options do not inherit."""
    scenario = plan.question.scenario
    if sum(pool.role == "both" for pool in scenario.cluster.pools) > 1:
        yield "a plan has one kind of replica: only the first pool of role both was used"
    written = [key for key, origin in scenario.origins.items() if origin == "explicit"]
    has_others = len(plan.choices) + len(plan.others) > 1
    for key in OF_ONE_SIZE:
        if has_others and any(f".{key}" in path and path.startswith("cluster.pools.") for path in written):
            yield f"{key} applies to the scenario's own kind of replica only; other options are planned without it"


def _of_costs(plan: Plan) -> Iterator[str]:
    """Yield the step-cost warnings of every option that meets the SLO."""
    for choice in plan.choices:
        setups = choice.sized.fleets.least.setups
        yield from (*warnings(setups), *notes(setups))
