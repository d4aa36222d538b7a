"""Plan alone: what a request gets that has an idle replica for itself, which no number of replicas can better."""

from dataclasses import dataclass, replace

import numpy as np

from simserve.metrics.decision import wilson
from simserve.metrics.goodput import GOALS
from simserve.scenario import Scenario
from simserve.simulation import simulate
from simserve.study.intervals import Z_95
from simserve.workload.load import Load, offered_load

N_REQUESTS = 1000
"""First requests of the load, sent one at a time."""

APART_S = 200.0
"""Between two requests: the one before is done by then, or what is left of it hardly matters."""


@dataclass(frozen=True)
class Unloaded:
    """What requests got one at a time."""

    attained_frac: float
    """Share of them that met every SLO."""
    high_frac: float
    """The upper end of its 95% interval."""
    slo: str
    """The one that the fewest met."""
    slo_frac: float
    """How many that was."""
    prompt_tokens: int
    """Prompt of the request that took longest by that SLO."""
    took_s: float
    """What it took; NaN where no request has that latency."""
    refused_frac: float = 0.0
    """Share of them that no replica can hold."""


def unloaded(scenario: Scenario) -> Unloaded | None:
    """Send requests of the load one at a time; None where others make a request faster, or its targets are its class's.

    `scenario`: with the least fleet of an option.
    """
    load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
    if load.trace.prefixes is not None or load.trace.dependencies is not None or scenario.slo.classes:
        return None
    trace = load.trace.take(slice(N_REQUESTS))
    one_at_a_time = Load(replace(trace, arrival_s=np.arange(len(trace), dtype=np.float64) * APART_S))
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
