"""Warnings of a plan."""

from collections.abc import Iterator

from simserve.metrics.reservation import reservation_warnings
from simserve.scenario.cost_warnings import notes, warnings
from simserve.study.capacity.facts import load_warnings
from simserve.study.plan.options import OF_ONE_SIZE
from simserve.study.plan.plan import Plan


def plan_warnings(plan: Plan) -> list[str]:
    """Return the warnings as sentences."""
    return list(dict.fromkeys([*_of_load(plan), *_of_fleets(plan), *_of_costs(plan)]))


def _of_load(plan: Plan) -> Iterator[str]:
    if plan.demand.kind == "diurnal":
        yield "the load is diurnal: fleets are sized for its highest rate held steady, which is conservative"
    if plan.demand.is_deterministic:
        yield "the load is deterministic, so every seed gives the same run: intervals cover variation within it only"
    best = plan.best
    sized = [] if best is None else [best.sized.fewer, best.sized.needed]
    trials = [trial for trial in (*sized, *(other.nearest for other in plan.others)) if trial is not None]
    yield from reservation_warnings(run for trial in trials for run in trial.point.runs)
    if best is not None:
        yield from load_warnings(best.sized.needed.point.load)
    if best is not None and any(run["trust"]["kv_limit_is_a_guess"] for run in best.sized.needed.point.runs):
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
