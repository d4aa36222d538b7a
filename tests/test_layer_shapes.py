"""Models whose layers differ in shape run from a config.json to a summary: in stages, with caches, disaggregated."""

import json
from pathlib import Path
from typing import Any

import pytest

from simserve import Scenario, simulate
from simserve.explain.explain import explain
from tests.catalog.test_published import CONFIGS

STAGES = {"parallel": {"tensor": 1, "pipeline": 2}}
POOLS: dict[str, list[dict[str, Any]]] = {
    "stages": [STAGES],
    "caches": [{"enable_prefix_caching": True}],
    "disaggregated": [{"name": name, "role": name, "replicas": 1} for name in ("prefill", "decode")],
}


@pytest.mark.parametrize("how", POOLS)
@pytest.mark.parametrize("name", ["OpenELM-3B", "Llama-3_3-Nemotron-Super-49B-v1"])
def test_a_model_of_several_shapes_serves_all_requests(tmp_path: Path, name: str, how: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    one = Scenario.from_dict(
        {
            "schema": "simserve/1",
            "model": str(tmp_path / "config.json"),
            "gpu": "b200-sxm",
            "engine": "vllm",
            "cluster": {"pools": POOLS[how]},
            "workload": {
                "client": {"kind": "closed_loop", "concurrency": 8},
                "lengths": {"kind": "fixed", "prompt_tokens": 512, "output_tokens": 32},
                "n_requests": 24,
            },
            "measure": {"replays": 0},
        }
    )
    assert all(pool.n_blocks > 1000 for pool in explain(one).pools)
    results = simulate(one)
    assert (results.requests["status"] == "finished").all()
    assert 0 < results.summary["mfu"] < 1
    assert 0 < results.summary["mbu"] < 1
