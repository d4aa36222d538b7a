"""Which calibration a pool's costs come from, and what is said about one that cannot be used."""

import json
from pathlib import Path
from typing import Any

import pytest

from simserve import Scenario
from simserve.cost.calibration import calibration_path, read_calibration
from simserve.errors import ScenarioError

WORKLOAD = {
    "arrivals": {"kind": "constant", "rate_per_s": 1},
    "lengths": {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8},
    "n_requests": 3,
}


def scenario(pool: dict[str, Any] | None = None, **changes: Any) -> Scenario:
    data = {"schema": "simserve/1", "model": "llama-3.1-8b", "gpu": "h100-sxm", "workload": WORKLOAD, **changes}
    return Scenario.from_dict(data | {"cluster": {"pools": [pool or {}]}})


def test_the_shipped_one_is_taken_and_its_sha256_written_down() -> None:
    resolved = scenario()
    named = resolved.cluster.pools[0].calibration
    assert named is not None
    assert named.file == "h100-sxm/vllm"
    assert named.sha256 == read_calibration(calibration_path("h100-sxm/vllm")).sha256
    assert resolved.origins["cluster.pools.0.calibration.file"] == "shipped"
    assert resolved.setups[0].calibrated
    assert Scenario.from_dict(resolved.to_dict()) == resolved


def test_a_card_that_nobody_timed_is_scaled_and_says_so() -> None:
    resolved = scenario(gpu="rtx-4090")
    assert resolved.origins["cluster.pools.0.calibration.file"] == "scaled to rtx-4090, which has none of its own"
    assert not resolved.setups[0].calibrated
    assert Scenario.from_dict(resolved.to_dict()) == resolved


@pytest.mark.parametrize("engine", ["ideal", {"name": "vllm", "memory_efficiency": 0.7}])
def test_who_asks_for_a_plain_roofline_gets_it(engine: Any) -> None:
    resolved = scenario(engine=engine)
    assert resolved.setups[0].calibration is None
    assert scenario({"calibration": "none"}).setups[0].calibration is None


def test_constants_of_a_scenario_come_before_fitted_ones() -> None:
    fitted = read_calibration(calibration_path("h100-sxm/vllm")).host
    assert scenario().setups[0].engine.step_host_s == fitted["step_host_s"]
    assert scenario(engine={"name": "vllm", "step_host_s": 0.5}).setups[0].engine.step_host_s == 0.5


@pytest.mark.parametrize("version", [None, "0.12"])
def test_a_host_fitted_to_ones_own_servers_comes_before_the_catalogs_for_one_gpu(
    tmp_path: Path, version: str | None
) -> None:
    """By `calibrate --host`, or by `calibrate --logs`, which names the version."""
    data = json.loads(calibration_path("h100-sxm/vllm").read_bytes())
    data["host"]["request_host_s"]["value"] = 7e-6
    (tmp_path / "mine.json").write_text(json.dumps(data if version is None else data | {"host_version": version}))
    engine = {"name": "vllm", "version": "0.12"}
    shipped, own = (scenario(pool, engine=engine) for pool in (None, {"calibration": str(tmp_path / "mine.json")}))
    assert [each.setups[0].engine.request_host_s for each in (shipped, own)] == [15e-6, 7e-6]


def test_a_file_of_ones_own_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.json").write_bytes(calibration_path("h100-sxm/vllm").read_bytes())
    monkeypatch.chdir(tmp_path)
    resolved = scenario({"calibration": "mine.json"})
    monkeypatch.chdir("/")
    assert Scenario.from_dict(resolved.to_dict()) == resolved
    assert resolved.setups[0].calibrated


@pytest.mark.parametrize(
    ("pool", "messages_of"),
    [
        ({"calibration": "nowhere.json"}, "no such calibration; there are"),
        ({"calibration": "a100-sxm/vllm"}, "must be of h100-sxm, got 'one of a100-sxm'; leave it out"),
        ({"calibration": {"file": "h100-sxm/vllm", "sha256": "0" * 64}}, "has changed since the scenario was resolved"),
        ({"calibration": {"fil": "x"}}, "did you mean file"),
    ],
)
def test_one_that_cannot_be_used_is_a_mistake(pool: dict[str, Any], messages_of: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario(pool)
    assert messages_of in str(error.value)
    assert "cluster.pools.0.calibration" in str(error.value)


@pytest.mark.parametrize(
    ("op", "messages_of"),
    [
        ("gemm", "gemm was not measured for bf16, only for nothing; use one of these, or calibration: none"),
        ("decode_attention", "decode_attention was not measured for bf16"),
        ("all_reduce", "all_reduce was not measured for 2 GPUs"),
    ],
)
def test_a_kernel_that_the_model_needs_and_nobody_timed_is_a_mistake(op: str, messages_of: str, tmp_path: Path) -> None:
    data = json.loads(calibration_path("h100-sxm/vllm").read_text())
    data["kernels"] = [kernel for kernel in data["kernels"] if kernel["op"] != op]
    (tmp_path / "mine.json").write_text(json.dumps(data))
    with pytest.raises(ScenarioError, match=messages_of) as error:
        scenario({"calibration": str(tmp_path / "mine.json"), "parallel": {"tensor": 2}})
    assert "cluster.pools.0.calibration: " in str(error.value)


@pytest.mark.parametrize(
    ("version", "pool", "is_eager"),
    [
        ("0.5.12", {}, False),
        ("0.5.9", {}, True),
        ("0.5.12", {"gpu": "mi300x"}, True),
        ("0.5.12", {"model": "qwen3.5-27b"}, True),
        ("0.5.12", {"parallel": {"pipeline": 2}}, True),
        ("0.5.12", {"engine": {"name": "sglang", "version": "0.5.12", "eager_kernel_s": 1e-5}}, True),
        ("0.5.12", {"engine": {"name": "sglang", "version": "0.5.12", "enforce_eager": True}}, True),
    ],
)
def test_sglang_launches_prompts_kernel_by_kernel_where_no_graph_holds_them(
    version: str, pool: dict[str, Any], is_eager: bool
) -> None:
    (setup,) = scenario(pool, engine={"name": "sglang", "version": version}).setups
    assert setup.engine.captures_prompts != is_eager
