"""Compare paged KV blocks with reserved ones: the load of the same GPU, and the requests that run at once.

python docs/studies/paged_blocks.py
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from highest_rate import HERE, Results, Served, highest_rate_per_s, run
from table import Rows, markdown

from simserve import load_scenario, simulate
from simserve.workload.load import offered_load

MOST_S = 0.2
"""Bound on the mean of latency over output length, vLLM's normalized latency."""
COLUMNS = {"req/s": "{:.2f}", "of paged": "{:.0%}", "running at 2 req/s": "{:.1f}"}


def knowing_lengths(changes: Sequence[str]) -> Results:
    """Run with max_tokens equal to each request's output length, which no server can know."""
    scenario = load_scenario(HERE / "paged_blocks.yaml", changes)
    load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
    return simulate(scenario, load=replace(load, trace=replace(load.trace, max_tokens=load.trace.output_tokens)))


plain: Served = partial(run, "paged_blocks")
POLICIES: dict[str, tuple[Served, str]] = {
    "whole batches, blocks for 2048 tokens": (plain, "{kind: static, batch_size: 32}"),
    "continuous, blocks for 2048 tokens": (plain, "{kind: continuous}"),
    "continuous, blocks for the true length": (knowing_lengths, "{kind: continuous}"),
    "paged blocks": (plain, "{kind: prefill_first, max_num_batched_tokens: 2560}"),
}


def result(*changes: str) -> Rows:
    """Return the highest rate of each policy, its ratio to paged blocks, and the requests that run at once."""
    rows: dict[str, dict[str, float]] = {}
    for name, (served, policy) in POLICIES.items():
        chosen = [*changes, f"cluster.pools.0.scheduler={policy}"]
        rate_per_s = highest_rate_per_s(served, chosen, 10.0, is_quick)
        at_two = served([*chosen, "workload.arrivals.rate_per_s=2"])
        rows[name] = {"req/s": rate_per_s, "running at 2 req/s": running(at_two)}
    paged_per_s = rows["paged blocks"]["req/s"]
    return {name: cells | {"of paged": cells["req/s"] / paged_per_s} for name, cells in rows.items()}


def is_quick(result: Results) -> bool:
    requests = result.requests[result.requests.in_window]
    return float((requests.e2e_s / requests.output_tokens).mean()) <= MOST_S


def running(result: Results) -> float:
    """Return the mean number of running requests while requests arrive."""
    series = result.timeseries
    arriving = series[series.end_s <= result.requests.arrival_s.max()]
    return float(arriving.running.mean())


def printed(rows: Rows) -> str:
    return markdown("blocks", rows, COLUMNS)


if __name__ == "__main__":
    print(printed(result()))
