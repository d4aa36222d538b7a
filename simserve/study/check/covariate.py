"""Covariate: how hard a seed's load is on any server: how many of its requests come when many others are in progress.

It is known without a run, and explains most of why one seed's p99 goodput differs from another's: 70% of the variance
on scenarios/chat_burst.yaml. So two sides that had other seeds can be told apart with far fewer of them.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simserve.scenario import Scenario
from simserve.study.fleet import at_scale
from simserve.tables.columns import Floats
from simserve.workload.load import offered_load


def in_progress(scenario: Scenario, scale: float, seed: int) -> NDArray[np.int64]:
    """Count the others that each request meets on a server as slow as the SLO allows, `(n_requests,)`.

    Requests of the warm-up are left out, where it is given in seconds.
    """
    scaled = at_scale(scenario, scale)
    trace = offered_load(scaled.workload, seed, scaled.base_dir).trace
    arrival_s = trace.arrival_s
    end_s = np.sort(arrival_s + _allowed_s(scenario, trace.output_tokens))
    met = np.arange(len(arrival_s)) - np.searchsorted(end_s, arrival_s, side="right")
    warmup_s = scaled.measure.warmup_s
    return met[arrival_s >= warmup_s] if isinstance(warmup_s, float) else met


def crowd(scenario: Scenario, scale: float, seeds: Sequence[int], goal_frac: float) -> float:
    """Return the number of others that the goal's share of all requests meets at most."""
    return float(np.quantile(np.concatenate([in_progress(scenario, scale, seed) for seed in seeds]), goal_frac))


def covariate(scenario: Scenario, scale: float, seeds: Sequence[int], above: float) -> Floats:
    """Return the share of each seed's requests that meet more than that, `(n_seeds,)`."""
    return np.array([float((in_progress(scenario, scale, seed) > above).mean()) for seed in seeds])


def _allowed_s(scenario: Scenario, output_tokens: NDArray[np.int64]) -> Floats:
    """Return the time that each request may take, `(n_requests,)`; of classes, the longest."""
    targets = [scenario.slo.default, *scenario.slo.classes.values()]
    ttft_s, tpot_s, e2e_s = (
        max((getattr(each, key) or 0.0 for each in targets), default=0.0) for key in ("ttft_s", "tpot_s", "e2e_s")
    )
    if not (ttft_s or tpot_s):
        return np.full(len(output_tokens), e2e_s)
    allowed_s: Floats = ttft_s + tpot_s * output_tokens.astype(np.float64)
    return allowed_s
