"""What a request gets by itself is what a run of it alone gives, whatever the load would have made of it."""

from pathlib import Path
from typing import Any

import pytest

from simserve import Scenario, load_scenario, simulate
from simserve.metrics.answers.plan_option import OptionAlone
from simserve.study.plan.outcome import unloaded
from tests.cli.scenarios import write_scenario


def crowded(folder: Path, *overrides: str, **changes: Any) -> Scenario:
    """All requests come nearly at once."""
    fast = ["workload.arrivals.rate_per_s=10000", "measure={warmup_requests: 5}"]
    return load_scenario(write_scenario(folder, **changes), overrides=[*fast, *overrides])


def by_itself(folder: Path, key: str) -> float:
    """The latency of the only request of a run."""
    return float(
        simulate(load_scenario(write_scenario(folder), overrides=["workload.n_requests=1"])).summary[key]["p50"]
    )


@pytest.mark.parametrize("key", ["ttft_s", "tpot_s"])
def test_a_limit_just_above_what_a_lone_request_takes_is_met_by_all_and_just_below_by_none(
    tmp_path: Path, key: str
) -> None:
    took_s = by_itself(tmp_path, key)
    for limit_s, met in ((took_s * 1.01, 1.0), (took_s * 0.99, 0.0)):
        result, high_frac = unloaded(crowded(tmp_path, slo={key: limit_s}))
        assert (result.alone_attained_frac, result.alone_slo, result.alone_slo_frac) == (met, key, met)
        assert result.alone_prompt_tokens == 64
        assert result.alone_took_s == pytest.approx(took_s, rel=1e-6)
        assert high_frac == pytest.approx(1.0 if met else 0.0876, abs=1e-3)  # Wilson: 1.96² / (40 + 1.96²)


def test_the_request_that_took_longest_is_named(tmp_path: Path) -> None:
    lengths = "workload.lengths={kind: uniform, prompt_tokens: [100, 4000], output_tokens: [2, 2]}"
    result, _ = unloaded(crowded(tmp_path, lengths, "slo={ttft_s: 0.05, e2e_s: 100}"))
    assert result.alone_slo == "ttft_s"
    assert 0 < (result.alone_slo_frac or 0) < 1
    assert (result.alone_prompt_tokens or 0) > 3000
    assert (result.alone_took_s or 0) > 0.05


def test_requests_that_no_replica_can_hold_are_counted(tmp_path: Path) -> None:
    result, _ = unloaded(crowded(tmp_path, "cluster.pools.0.max_model_len=32"))
    assert (result.alone_attained_frac, result.alone_refused_frac) == (0.0, 1.0)


def test_where_requests_help_each_other_or_have_targets_of_their_own_nothing_is_said(tmp_path: Path) -> None:
    shared = "workload.prefixes={kind: shared, prefix_tokens: 32}"
    classes = {"arrivals": {"kind": "poisson", "rate_per_s": 8}, "n_requests": 40}
    classes |= {
        "lengths": {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8},
        "classes": {"chat": {"share": 1}},
    }
    assert unloaded(crowded(tmp_path, shared)) == (OptionAlone(), 1.0)
    assert unloaded(crowded(tmp_path, workload=classes, slo={"classes": {"chat": {"ttft_s": 1}}})) == (
        OptionAlone(),
        1.0,
    )
