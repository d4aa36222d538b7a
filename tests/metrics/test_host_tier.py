"""What a run with a host tier reports: swaps, hits by tier and bytes, from tables and when read again."""

from pathlib import Path

import numpy as np
import pytest

from simserve import simulate
from simserve.metrics.result_folder import load_results
from simserve.metrics.results import Results
from simserve.report.page import render
from simserve.scenario import Scenario

BLOCK_BYTES = 2**21
"""Llama-3.1-8B, 16 tokens."""


GIVEN = {"schema": "simserve/1", "model": "llama-3.1-8b", "gpu": "h100-sxm"}
WORKLOAD = {
    "arrivals": {"kind": "poisson", "rate_per_s": 3},
    "lengths": {"kind": "uniform", "prompt_tokens": [200, 1500], "output_tokens": [100, 900]},
    "prefixes": {"kind": "conversations", "turns": [1, 5], "think_s": {"mean": 20}, "max_prompt_tokens": 6000},
    "n_requests": 500,
}


@pytest.fixture(scope="module")
def results() -> Results:
    """Conversations on a replica with so few blocks that requests are swapped and prefixes read again."""
    pool = {"num_gpu_blocks": 1500, "host_tier": {"bytes": 4e9, "disk": {"bytes": 100e9, "bytes_per_s": 5e9}}}
    return simulate(Scenario.from_dict({**GIVEN, "cluster": {"pools": [pool]}, "workload": WORKLOAD}))


def test_all_bytes_that_were_swapped_out_have_come_back_or_were_on_the_gpu_still(results: Results) -> None:
    result, requests = results.summary["host_tier"], results.columns["requests"]
    assert result["n_swaps"] == requests["n_swaps"].sum() > 20
    assert result["swapped_out_bytes"] == result["swapped_in_bytes"] + result["dropped_bytes"]
    assert result["left_bytes"] == 0
    assert result["swapped_out_bytes"] % BLOCK_BYTES == 0


def test_hits_are_counted_once_by_where_they_were(results: Results) -> None:
    hits, requests = results.summary["host_tier"]["hit_tokens"], results.columns["requests"]
    assert min(hits.values()) > 0
    assert sum(hits.values()) == results.summary["prefix_cache"]["hit_tokens"] == requests["cached_tokens"].sum()
    below = requests["host_cached_tokens"] + requests["disk_cached_tokens"]
    assert (below <= requests["cached_tokens"]).all()
    assert (requests["cached_tokens"] < requests["prompt_tokens"]).all()
    assert results.summary["host_tier"]["read_bytes"] >= below.sum() / 16 * BLOCK_BYTES


def test_steps_and_requests_waited_at_least_as_long_as_the_link_takes_for_what_they_waited_for(
    results: Results,
) -> None:
    result = results.summary["host_tier"]
    swapped_bytes = result["swapped_out_bytes"] + result["swapped_in_bytes"]
    assert result["wait_s"] >= swapped_bytes / 64e9 * (1 - 1e-9)
    assert result["read_s"] >= result["read_bytes"] / 64e9 * (1 - 1e-9) > 0
    swapped = results.columns["requests"]["n_swaps"] > 0
    gaps_s, away_s = (results.columns["requests"][name][swapped] for name in ("max_itl_s", "preempted_s"))
    n_times = results.columns["requests"]["n_preemptions"][swapped]
    assert (gaps_s >= away_s / np.maximum(n_times, 1)).all()  # the gap holds the wait


def test_replicas_that_share_a_store_read_what_others_have_computed() -> None:
    hits = {}
    for scope, n_bytes in (("replica", 4e9), ("pool", 16e9)):
        tier = {"bytes": n_bytes, "scope": scope, "preemption": "recompute"}
        pool = {"replicas": 4, "num_gpu_blocks": 1500, "host_tier": tier}
        cluster = {"pools": [pool], "router": "least_outstanding"}
        result = simulate(Scenario.from_dict({**GIVEN, "cluster": cluster, "workload": WORKLOAD | {"n_requests": 200}}))
        summary, cached = result.summary["host_tier"], result.summary["prefix_cache"]["hit_tokens"]
        assert sum(summary["hit_tokens"].values()) == cached
        assert summary["n_swaps"] == summary["left_bytes"] == 0
        hits[scope] = cached, summary["hit_tokens"]["host"]
    assert hits["pool"][0] > 1.2 * hits["replica"][0]
    assert hits["pool"][1] > 2 * hits["replica"][1]


def test_written_and_read_again_it_says_the_same(results: Results, tmp_path: Path) -> None:
    results.write(tmp_path / "run")
    again = load_results(tmp_path / "run")
    assert again.summary["host_tier"] == results.summary["host_tier"]
    assert again.facts.host_tier == results.facts.host_tier


def test_the_page_tells_what_was_swapped_and_read(results: Results) -> None:
    page = render(results)
    for words in ("Requests swapped out", "Copied by swaps, out / in", "Prefixes read from host and disk"):
        assert words in page
