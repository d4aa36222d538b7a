"""Models of the catalog run from scenario to summary; those with experts and latent attention under every engine."""

import time

import pytest

from simserve import Scenario, catalog, simulate
from simserve.cost.shard import Shard
from simserve.explain.explain import explain
from tests.cost.specs import active_weights

RUNS = [
    ("mixtral-8x7b", "bf16", "h100-sxm", 4, 1),
    ("qwen3-30b-a3b", "bf16", "h100-sxm", 2, 1),
    ("qwen3-30b-a3b", "bf16", "h100-sxm", 4, 4),
    ("gpt-oss-120b", "mxfp4", "h100-sxm", 2, 1),
    ("qwen3-235b-a22b", "fp8", "h100-sxm", 8, 1),
    ("deepseek-v3", "fp8_block", "h200-sxm", 8, 1),
    ("deepseek-v3", "fp8_block", "h200-sxm", 8, 8),
]


def scenario(model: str, dtype: str, gpu: str, tensor: int, expert: int, engine: str) -> Scenario:
    return Scenario.from_dict(
        {
            "schema": "simserve/1",
            "model": model,
            "gpu": gpu,
            "engine": engine,
            "weight_dtype": dtype,
            "cluster": {"pools": [{"parallel": {"tensor": tensor, "expert": expert}}]},
            "workload": {
                "client": {"kind": "closed_loop", "concurrency": 16},
                "lengths": {"kind": "fixed", "prompt_tokens": 512, "output_tokens": 64},
                "n_requests": 48,
            },
            "measure": {"replays": 0},
        }
    )


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "ideal"])
@pytest.mark.parametrize(("model", "dtype", "gpu", "tensor", "expert"), RUNS)
def test_it_fits_explains_itself_and_serves_all_requests(
    model: str, dtype: str, gpu: str, tensor: int, expert: int, engine: str
) -> None:
    one = scenario(model, dtype, gpu, tensor, expert, engine)
    (pool,) = explain(one).pools
    assert pool.n_blocks > 1000
    assert all(step.duration_s > 0 for step in pool.steps)
    results = simulate(one)
    assert (results.requests["status"] == "finished").all()
    assert 0 < results.summary["mfu"] < 1
    assert 0 < results.summary["mbu"] < 1


@pytest.mark.parametrize("name", catalog.names("models"))
def test_every_model_of_the_catalog_serves_requests(name: str) -> None:
    model = catalog.load_model(name)
    tensors = [
        n for n in (8, 4, 2) if model.n_heads % n == 0 and (model.n_kv_heads % n == 0 or n % model.n_kv_heads == 0)
    ]
    results = simulate(scenario(name, model.weight_dtype or "fp8", "b200-sxm", tensors[0], 1, "vllm"))
    assert (results.requests["status"] == "finished").all()
    cost = results.summary["tpot_s"]["mean"]
    active_bytes = active_weights(Shard(model, model.weight_dtype or "fp8")) * 0.5 / tensors[0]
    assert active_bytes / 7.7e12 < cost < 0.1


def test_the_table_of_deepseek_v3_is_there_in_half_a_second() -> None:
    cost = scenario("deepseek-v3", "fp8_block", "h200-sxm", 8, 8, "vllm").setups[0].step_cost()
    began_s = time.perf_counter()
    cost.tokens_ps(8192)
    cost.decode_line(256)
    assert time.perf_counter() - began_s < 0.5
