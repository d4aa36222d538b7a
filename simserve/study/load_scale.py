"""Load scale: a scenario with its load scaled by a factor, from the same randomness."""

from typing import Any

from simserve.errors import Problem, ScenarioError
from simserve.scenario import Scenario
from simserve.workload.size import check_size, expected_requests

RATES = ("rate_per_s", "rates_per_s")
"""Rate arguments of arrival processes; lengths, dwells and periods stay."""


def at_scale(scenario: Scenario, scale: float) -> Scenario:
    """Return the scenario with all its rates times scale. Raises ScenarioError where its load has no rate, and
    TooManyArrivals where a run may not have so many requests.

    A load that ends with its last request ends sooner at a higher rate. Its warm-up shrinks alike, so that every scale
    measures the same requests.
    """
    workload = scenario.workload
    if workload.trace is not None and workload.is_replayed:
        trace = workload.trace.model_copy(update={"rate_scale": workload.trace.rate_scale * scale})
        update: dict[str, Any] = {"trace": trace}
    elif workload.arrivals is not None and any(name in workload.arrivals for name in RATES):
        arrivals = {key: _scaled(value, scale) if key in RATES else value for key, value in workload.arrivals.items()}
        update = {"arrivals": arrivals}
        if scale > 1:
            of = f"{scenario.name}: workload.arrivals at {scale:.3g} times its rate"
            check_size(expected_requests(workload.model_copy(update=update)), of)
    else:
        rule = "needs a rate to search over: arrivals with rate_per_s or rates_per_s, or a trace"
        instead = "--replicas" if workload.client is None else "--concurrency or --replicas"
        raise ScenarioError([Problem(f"{scenario.name}: workload", rule, None, f"search over {instead} instead")])
    whole: dict[str, Any] = {"workload": workload.model_copy(update=update)}
    warmup_s = scenario.measure.warmup_s
    if isinstance(warmup_s, float) and workload.duration_s is None:
        whole["measure"] = scenario.measure.model_copy(update={"warmup_s": warmup_s / scale})
    return scenario.model_copy(update=whole)


def _scaled(value: Any, scale: float) -> Any:
    return [each * scale for each in value] if isinstance(value, list) else value * scale
