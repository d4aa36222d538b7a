"""Latency of requests on an idle replica: the bound that no number of replicas improves."""

from dataclasses import dataclass, replace

import numpy as np

from simserve.metrics.decision import wilson
from simserve.metrics.goodput import GOALS
from simserve.scenario import Scenario
from simserve.simulation import simulate
from simserve.study.intervals import Z_95
from simserve.workload.load import Load, offered_load

N_REQUESTS = 1000
"""Requests of the load to send one at a time."""

SPACING_S = 200.0
"""Time between two requests, so that they do not share a batch."""


@dataclass(frozen=True)
class Unloaded:
    """Attainment and worst latency of requests sent one at a time."""

    attained_frac: float
    """Share of requests that met every SLO."""
    high_frac: float
    """Upper end of its 95% interval."""
    slo: str
    """SLO that the fewest requests met."""
    slo_frac: float
    """Share of requests that met that SLO."""
    prompt_tokens: int
    """Prompt length of the slowest request by that SLO."""
    took_s: float
    """Latency of that request; NaN if no request has one."""
    refused_frac: float = 0.0
    """Share of requests that no replica can hold."""


def unloaded(scenario: Scenario) -> Unloaded | None:
    """Send requests of the load one at a time to a scenario with the least fleet of an option.

    Return None for shared prefixes, sessions and SLO classes, where this is no bound.
    """
    load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
    if load.trace.prefixes is not None or load.trace.dependencies is not None or scenario.slo.classes:
        return None
    trace = load.trace.take(slice(N_REQUESTS))
    one_at_a_time = Load(replace(trace, arrival_s=np.arange(len(trace), dtype=np.float64) * SPACING_S))
    measure = scenario.measure.model_copy(update={"warmup_s": 0.0, "warmup_requests": None})
    run = simulate(scenario.model_copy(update={"measure": measure}), load=one_at_a_time)
    attained = run.summary["slo_attainment"]
    slo, slo_frac = min(attained["by_slo"].items(), key=lambda item: item[1])
    requests = run.columns["requests"]
    took_s = np.nan_to_num(requests[GOALS[slo]], nan=-np.inf)
    worst = int(took_s.argmax())
    return Unloaded(
        attained_frac=attained["frac"],
        high_frac=wilson(attained["frac"], attained["n_arrived"], Z_95)[1],
        slo=slo,
        slo_frac=slo_frac,
        prompt_tokens=int(requests["prompt_tokens"][worst]),
        took_s=float(requests[GOALS[slo]][worst]),
        refused_frac=run.summary["requests"]["rejected"] / attained["n_arrived"],
    )
