"""Plan warnings: what to know before a fleet is bought on these numbers."""

from collections.abc import Iterator

from simserve.scenario.cost_warnings import notes, warnings
from simserve.study.plan.options import OF_ONE_SIZE
from simserve.study.plan.plan import Plan


def plan_warnings(plan: Plan) -> list[str]:
    """As sentences."""
    return list(dict.fromkeys([*_of_load(plan), *_of_classes(plan), *_of_fleets(plan), *_of_costs(plan)]))


def _of_load(plan: Plan) -> Iterator[str]:
    if plan.demand.kind == "diurnal":
        yield "the load is diurnal: fleets are sized for its highest rate held steady, which no peak of it is"
    if plan.demand.is_deterministic:
        yield "nothing is drawn, so every seed gives the same run: intervals are those within it, and other days differ"
    best = plan.best
    if best is not None and any(run["trust"]["kv_limit_is_a_guess"] for run in best.sized.needed.point.runs):
        yield "KV cache use reached a number of blocks that is an estimate; give num_gpu_blocks from a server's log"


def _of_classes(plan: Plan) -> Iterator[str]:
    """The goal is of all requests together, in which a small class may drown."""
    goal_frac = plan.requested.bounds.goal_frac
    runs = plan.best.sized.needed.point.runs if plan.best else ()
    for name in plan.requested.scenario.slo.classes:
        result = [run["classes"][name]["slo_attainment"] for run in runs if name in (run["classes"] or {})]
        n_met, n_arrived = (sum(each[key] for each in result) for key in ("n_met", "n_arrived"))
        if n_arrived and n_met / n_arrived < goal_frac:
            yield (
                f"class {name} meets its SLO for {n_met / n_arrived:.1%} of its requests only: the goal is of all "
                "requests together"
            )


def _of_fleets(plan: Plan) -> Iterator[str]:
    """What the scenario says of its own fleet, and others do not take over."""
    scenario = plan.requested.scenario
    if sum(pool.role == "both" for pool in scenario.cluster.pools) > 1:
        yield "a plan has one kind of replica: pools of role both but the first were left out"
    written = [key for key, origin in scenario.origins.items() if origin == "explicit"]
    has_others = len(plan.choices) + len(plan.others) > 1
    for key in OF_ONE_SIZE:
        if has_others and any(f".{key}" in path and path.startswith("cluster.pools.") for path in written):
            yield f"{key} was given for one kind of replica, and others are planned without it"


def _of_costs(plan: Plan) -> Iterator[str]:
    """Of every option that holds."""
    for choice in plan.choices:
        setups = choice.sized.fleets.least.setups
        yield from (*warnings(setups), *notes(setups))
