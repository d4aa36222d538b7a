"""Errors of servers that no constant was fitted to: which facts count, how they add up, and what users read."""

import json
from pathlib import Path
from typing import Any

import pytest

from simserve import Scenario
from simserve.cli.explain import _pool_lines
from simserve.errors import CalibrationError
from simserve.explain.explain import explain
from simserve.scenario import cost_warnings
from simserve.scenario.server_errors import (
    METRICS,
    REASONS,
    FittedServers,
    ServerErrors,
    facts_of,
    parsed,
    read_server_errors,
    server_errors,
)

KNOWN = frozenset({"vllm", "sglang"})

BY_FACT = dict(zip(REASONS, (0.01, 0.02, 0.64, 0.04, 0.08, 0.16, 0.32), strict=True))
"""Their squares have no two sums alike."""

QWEN = FittedServers("vllm", "0.12", "h100-sxm", "qwen3-32b", "bf16", ("tpot_s", "ttft_s"))
HALF = FittedServers("trtllm", "1.0", "h100-sxm", "qwen3-32b", "fp8", ("tpot_s",))

OTHER = FittedServers("sglang", "0.5", "h100-sxm", "qwen3-32b", "bf16", ("tpot_s", "ttft_s"))

ERRORS = ServerErrors((QWEN, HALF, OTHER), dict.fromkeys(METRICS, BY_FACT))


def scenario(model: str = "qwen3-32b", gpu: str = "h100-sxm", **changes: Any) -> Scenario:
    data: dict[str, Any] = {
        "schema": "simserve/1",
        "model": model,
        "gpu": gpu,
        "cluster": {"pools": [{"parallel": {"tensor": 4}}]},
        "workload": {
            "arrivals": {"kind": "poisson", "rate_per_s": 8},
            "lengths": {"kind": "fixed", "prompt_tokens": 512, "output_tokens": 32},
            "n_requests": 60,
        },
    }
    return Scenario.from_dict(data | changes)


def version_of(engine: str, version: str) -> dict[str, Any]:
    return {"engine": {"name": engine, "version": version}}


APART = {
    "pools": [{"name": role, "role": role, "parallel": {"tensor": 4}} for role in ("prefill", "decode")],
    "kv_link": {"bytes_per_s": 5e10, "latency_s": 1e-5},
}


@pytest.mark.parametrize(
    ("requested", "facts"),
    [
        (scenario(), {"server"}),
        (scenario("mixtral-8x7b"), {"server", "experts"}),
        (scenario(gpu="b200-sxm"), {"server", "generation"}),
        (scenario(gpu="h20-sxm"), {"server", "untimed"}),
        (scenario(gpu="l40s", engine="sglang"), {"server", "untimed"}),
        (scenario(gpu="mi300x", engine="sglang"), {"server", "untimed"}),
        (scenario(weight_dtype="w8a8"), {"server", "untimed"}),
        (scenario(engine="trtllm"), {"server", "front_end"}),
        (scenario(cluster=APART), {"server", "roles"}),
        (scenario(cluster={"pools": [{"parallel": {"tensor": 4, "pipeline": 4}}]}), {"server", "nodes"}),
    ],
)
def test_facts_are_known_before_the_run(requested: Scenario, facts: set[str]) -> None:
    assert facts_of(requested.setups, KNOWN) == facts


def test_variances_of_facts_add_up() -> None:
    setups = scenario("mixtral-8x7b", gpu="h20-sxm").setups
    assert ERRORS.of(setups) == dict.fromkeys(METRICS, pytest.approx((0.01**2 + 0.02**2 + 0.04**2) ** 0.5))
    assert ERRORS.reason(setups) == "some kernels of mixtral-8x7b under vllm were not timed on h20-sxm"
    blackwell = scenario("mixtral-8x7b", gpu="b200-sxm").setups
    assert ERRORS.reason(blackwell) == "no server on b200-sxm or a card of its generation was fitted"


def test_the_facts_of_several_pools_count_once() -> None:
    apart = scenario(cluster=APART)
    assert ERRORS.of(apart.setups)["tpot_s"] == pytest.approx((0.01**2 + 0.16**2) ** 0.5)
    assert ERRORS.of(apart.setups) == ERRORS.of(apart.setups[:1])


def test_nothing_is_added_for_servers_that_were_fitted() -> None:
    nothing = dict.fromkeys(METRICS, 0.0)
    fitted = version_of("vllm", "0.12.0")
    assert ERRORS.of(scenario(**fitted).setups) == nothing
    assert ERRORS.reason(scenario(**fitted).setups) is None
    assert ERRORS.of(scenario(engine="ideal").setups) == nothing
    others = [
        scenario(),  # a newer version
        scenario("qwen3-8b", **fitted),
        scenario(gpu="h200-sxm", **fitted),
        scenario(weight_dtype="fp8", **fitted),
    ]
    for each in others:
        assert ERRORS.of(each.setups)["tpot_s"] == pytest.approx(0.01)


def test_a_latency_that_the_fit_did_not_use_was_not_fitted() -> None:
    """The E2E latency is made of both."""
    setups = scenario(weight_dtype="fp8", engine="trtllm").setups
    half = ServerErrors((QWEN, FittedServers("trtllm", setups[0].engine.constants_of, *_of(HALF))), ERRORS.sds)
    both = pytest.approx((0.01**2 + 0.08**2) ** 0.5)
    assert half.of(setups) == {"tpot_s": 0.0, "ttft_s": both, "e2e_s": both}
    assert half.reason(setups) == "no TTFT of trtllm was fitted"


def _of(servers: FittedServers) -> tuple[Any, ...]:
    return servers.gpu, servers.model, servers.weight_dtype, servers.metrics


def test_a_card_that_was_fitted_to_runs_of_a_model_knows_no_other_model() -> None:
    fitted, other = (
        ERRORS.of(scenario(model, "mi300x", engine="sglang", cluster={"pools": [{"parallel": {"tensor": 8}}]}).setups)
        for model in ("deepseek-v3", "qwen3-32b")
    )
    assert fitted["tpot_s"] == 0
    assert other["tpot_s"] == pytest.approx((0.01**2 + 0.04**2) ** 0.5)


def test_constants_that_were_fitted_to_logs_are_those_of_this_server(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "calibration" / "h100-sxm" / "vllm.json"
    own = tmp_path / "mine.json"
    own.write_text(json.dumps(json.loads(shipped.read_text(encoding="utf-8")) | {"host_version": "0.19"}))
    pool = {"parallel": {"tensor": 4}, "calibration": str(own)}
    assert ERRORS.of(scenario("mixtral-8x7b", cluster={"pools": [pool]}).setups) == dict.fromkeys(METRICS, 0.0)


def test_a_dense_model_of_a_fitted_engine_on_a_timed_card_adds_less_than_one_with_experts() -> None:
    shipped = server_errors()
    dense, experts, untimed = (
        shipped.of(scenario(model, gpu).setups)["tpot_s"]
        for model, gpu in (("qwen3-32b", "h100-sxm"), ("mixtral-8x7b", "h100-sxm"), ("mixtral-8x7b", "h20-sxm"))
    )
    assert dense < experts < untimed


def test_users_read_why_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_warnings, "server_errors", lambda: ERRORS)
    requested = scenario("mixtral-8x7b")
    sentence = (
        "prediction intervals allow for an error between servers of 2% in TPOT and 2% in TTFT (standard deviation): "
        "no run of mixtral-8x7b, with experts, was fitted"
    )
    assert sentence in cost_warnings.notes(requested.setups)
    (pool,) = explain(requested).pools
    assert pool.wide_intervals == sentence
    sure = "nine of ten such servers have mean TPOT within 6% and TTFT within 22% of the prediction: "
    assert f"  How sure: {sure}no run of mixtral-8x7b, with experts, was fitted" in list(_pool_lines(pool))
    fitted = scenario(**version_of("vllm", "0.12.0")).setups[0]
    assert cost_warnings.wide_intervals(fitted) is None
    assert cost_warnings.accuracy(fitted).endswith(
        "TPOT within 4% and TTFT within 21% of the prediction: constants were fitted to such servers"
    )


def test_a_file_that_is_not_whole_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "server_errors.json"
    path.write_text('{"schema": "simserve.server_errors/1", "fitted": []}')
    with pytest.raises(CalibrationError, match=r"server_errors\.json: must have the errors of servers .*metrics"):
        read_server_errors(path)
    with pytest.raises(ValueError, match="schema other"):
        parsed({"schema": "other"})
