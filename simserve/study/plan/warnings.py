"""Plan warnings: what to know before a fleet is bought on these numbers."""

from collections.abc import Iterator

from simserve.scenario.cost_warnings import notes, warnings
from simserve.study.capacity.facts import load_warnings
from simserve.study.plan.options import OF_ONE_SIZE
from simserve.study.plan.plan import Plan


def plan_warnings(plan: Plan) -> list[str]:
    """As sentences."""
    return list(dict.fromkeys([*_of_load(plan), *_of_fleets(plan), *_of_costs(plan)]))


def _of_load(plan: Plan) -> Iterator[str]:
    if plan.demand.kind == "diurnal":
        yield "the load is diurnal: fleets are sized for its highest rate held steady, which no peak of it is"
    if plan.demand.is_deterministic:
        yield "nothing is drawn, so every seed gives the same run: intervals are those within it, and other days differ"
    best = plan.best
    if best is not None:
        yield from load_warnings(best.sized.needed.point.load)
    if best is not None and any(run["trust"]["kv_limit_is_a_guess"] for run in best.sized.needed.point.runs):
        yield "KV cache use reached a number of blocks that is an estimate; give num_gpu_blocks from a server's log"


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
    """Yield warnings about the costs of every option that holds."""
    for choice in plan.choices:
        setups = choice.sized.fleets.least.setups
        yield from (*warnings(setups), *notes(setups))
