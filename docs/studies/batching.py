"""Compare whole batches (full, with a window, of all waiting requests) with continuous batching: the load of each.

python docs/studies/batching.py
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from highest_rate import Results, highest_rate_per_s, run
from table import Rows, markdown

POLICIES = {
    "full batches only": "{kind: dynamic, batch_size: 32, window_s: 3600}",
    "dynamic, window of 0.2 s": "{kind: dynamic, batch_size: 32, window_s: 0.2}",
    "static, all waiting": "{kind: static, batch_size: 32}",
    "continuous": "{kind: continuous, max_num_seqs: 32}",
}
BURSTS = "workload.arrivals={kind: mmpp, rates_per_s: [0.01, 100], mean_dwell_s: [8, 0.08]}"
"""About eight requests within a tenth of a second, then none for eight seconds."""
COLUMNS = {
    "req/s at 2x": "{:.2f}",
    "req/s at 20x": "{:.2f}",
    "bursts: s/token": "{:.3f}",
    "bursts: card busy": "{:.0%}",
}


def result(*changes: str) -> Rows:
    """Return the rates at which the median token takes at most 2 and 20 times as long as alone; add bursts."""
    alone_s = seconds_a_token(run("batching", [*changes, scheduler("continuous"), "workload.arrivals.rate_per_s=0.01"]))
    return {policy: of_policy(policy, alone_s, changes) for policy in POLICIES}


def of_policy(policy: str, alone_s: float, changes: Sequence[str]) -> dict[str, float]:
    chosen = [*changes, scheduler(policy)]
    bursts = run("batching", [*chosen, BURSTS])
    return {
        "req/s at 2x": rate_per_s(chosen, 2 * alone_s),
        "req/s at 20x": rate_per_s(chosen, 20 * alone_s),
        "bursts: s/token": seconds_a_token(bursts),
        "bursts: card busy": bursts.summary["busy_frac"],
    }


def rate_per_s(chosen: Sequence[str], most_s: float) -> float:
    return highest_rate_per_s(partial(run, "batching"), chosen, 20.0, lambda result: seconds_a_token(result) <= most_s)


def scheduler(policy: str) -> str:
    return f"cluster.pools.0.scheduler={POLICIES[policy]}"


def seconds_a_token(result: Results) -> float:
    """Return the median of latency over output length, Orca's normalized latency."""
    requests = result.requests[result.requests.in_window]
    return float(np.median(requests.e2e_s / requests.output_tokens))


def printed(rows: Rows) -> str:
    return markdown("policy", rows, COLUMNS)


if __name__ == "__main__":
    print(printed(result()))
