"""Reproduce overload that outlives a burst: retries sustain it, and admission ends it.

python docs/studies/overload.py

Bronson, Aghayev, Charapko and Zhu, "Metastable failures in distributed systems" (HotOS '21): a trigger takes a system
from a stable to a metastable state, and a sustaining effect, here the work for requests that time out and are sent
again, keeps it there when the trigger is gone.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from simserve import Results, Scenario, simulate
from simserve.workload.load import Load
from simserve.workload.trace import Trace

STEADY_PER_S, BURST_PER_S = 14.0, 60.0
BURST_S = (60.0, 80.0)
END_S = 300.0
SPANS_S = {"before the burst": (10.0, 40.0), "in it": BURST_S, "a minute after it": (140.0, 220.0)}
TIMEOUT = {"e2e_s": 15}
RETRIES = {"max_attempts": 5, "backoff_s": 0.5, "multiplier": 2, "max_backoff_s": 8, "jitter": 0.25}
ADMISSION = {"kind": "queue_length", "max_outstanding": 128}

CASES: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no retries": ({}, {"timeout": TIMEOUT}),
    "retries": ({}, {"timeout": TIMEOUT, "retries": RETRIES}),
    "retries, admission": ({"admission": ADMISSION}, {"timeout": TIMEOUT, "retries": RETRIES}),
}
"""Additions to the cluster and to the workload."""


def load(seed: int = 0) -> Trace:
    """Return chats at a steady rate, and a burst."""
    rng = np.random.default_rng(seed)
    steady_s = np.cumsum(rng.exponential(1 / STEADY_PER_S, int(2 * STEADY_PER_S * END_S)))
    burst_s = BURST_S[0] + np.cumsum(rng.exponential(1 / (BURST_PER_S - STEADY_PER_S), int(BURST_PER_S * END_S)))
    arrival_s = np.sort(np.concatenate([steady_s[steady_s < END_S], burst_s[burst_s < BURST_S[1]]]))
    prompts, outputs = (np.ceil(rng.lognormal(np.log(median), 0.5, len(arrival_s))) for median in (500, 300))
    return Trace(arrival_s, prompts.astype(np.int64), np.minimum(outputs, 2000).astype(np.int64))


def run(case: str) -> Results:
    """Run Llama-3.1-8B on one H100 under vLLM."""
    cluster, clients = CASES[case]
    workload = {"arrivals": {"kind": "poisson", "rate_per_s": STEADY_PER_S}, "lengths": LENGTHS, "duration_s": END_S}
    base = {"schema": "simserve/1", "model": "llama-3.1-8b", "gpu": "h100-sxm", "measure": {"replays": 0}}
    return simulate(Scenario.from_dict({**base, "cluster": cluster, "workload": workload | clients}), load=Load(load()))


LENGTHS = {"kind": "fixed", "prompt_tokens": 500, "output_tokens": 300}
"""Placeholder of the scenario; `load` is served in its place."""


def answered_frac(results: Results, span_s: tuple[float, float]) -> float:
    """Return the share answered in the end, of requests first sent in that span."""
    requests = results.columns["requests"]
    mine = (requests["first_sent_s"] >= span_s[0]) & (requests["first_sent_s"] < span_s[1])
    answered = mine & requests["status"].is_("finished")
    return float(answered.sum() / (mine & (requests["attempt"] == 1)).sum())


if __name__ == "__main__":
    for case in CASES:
        results = run(case)
        shares = ", ".join(f"{name} {answered_frac(results, span_s):.0%}" for name, span_s in SPANS_S.items())
        attempts, wasted = results.summary["retries"]["attempts_per_request"], results.summary["wasted"]["frac"]
        print(f"{case:19} answered {shares}; {attempts:.1f} attempts per request, {wasted:.0%} of tokens wasted")
