"""Models of which all layers have a state: memory is a number of states, and no token takes any of it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import simserve
from simserve import load_scenario
from simserve.catalog.specs import ModelSpec
from simserve.cost.kv_groups import kv_layout
from simserve.cost.shard import Shard
from simserve.errors import CatalogError, ScenarioError
from simserve.explain.explain import explain
from simserve.lab.kernels.shapes import shapes_to_time
from tests.catalog.test_published import CONFIGS, read
from tests.cli.invoke import invoke

CODESTRAL, FALCON, RAW = (CONFIGS[name] for name in ("Mamba-Codestral-7B-v0.1", "Falcon-Mamba-7B", "Mamba2-2.7B"))

STATES = 64 * (128 * 64 * 128 * 2 + 6 * (8192 + 2 * 8 * 128))
"""Bytes of a request of Mamba-Codestral: 64 layers, a matrix per head, and three inputs of the convolution."""

SMALL = {**CODESTRAL, "hidden_size": 1024, "num_heads": 32, "intermediate_size": 2048, "num_hidden_layers": 24}
"""A draft of the same vocabulary."""

LOAD = {
    "arrivals": {"kind": "poisson", "rate_per_s": 20},
    "lengths": {"kind": "uniform", "prompt_tokens": [2, 3000], "output_tokens": [1, 40]},
    "n_requests": 60,
}


def write(folder: Path, *pools: dict[str, Any], config: dict[str, Any] = CODESTRAL, **more: Any) -> Path:
    """Write a scenario of pools of a model."""
    read(folder, config)
    keys = {"schema": "simserve/1", "name": "states", "model": str(folder / "config.json"), "gpu": "h100-sxm"}
    named = [{"name": f"pool_{i}", **pool} for i, pool in enumerate(pools or ({},))]
    file = folder / "states.yaml"
    cluster = {"pools": named, **more.pop("cluster", {})}
    file.write_text(json.dumps({**keys, "workload": LOAD, **more, "cluster": cluster}))
    return file


def test_a_block_is_a_state_and_a_request_has_one_whatever_its_length(tmp_path: Path) -> None:
    shard = Shard(read(tmp_path, CODESTRAL))
    layout = kv_layout(shard, 16, 8192)
    assert layout.block_bytes == STATES
    assert [layout.blocks.held(n) for n in (0, 1, 10**6)] == [0, 1, 1]
    assert (layout.blocks.begun(0, 8192), layout.blocks.begun(8192, 1)) == (1, 0)
    assert layout.blocks_per_tokens == 0
    verified = kv_layout(shard, 16, 8192, n_states=4)
    assert [verified.blocks.most(n) for n in (1, 10**6)] == [4, 4]


def test_a_prefix_cache_keeps_a_state_after_every_256_tokens(tmp_path: Path) -> None:
    layout = kv_layout(Shard(read(tmp_path, CODESTRAL)), 16, 8192, keeps_states=True)
    assert (layout.block_size, layout.block_bytes) == (256, STATES)
    assert kv_layout(Shard(read(tmp_path, CODESTRAL)), 512, 8192, keeps_states=True).block_size == 512
    assert [layout.blocks.held(n) for n in (1, 256, 257, 10**6)] == [1, 1, 1, 1]
    assert (layout.blocks.begun(0, 512), layout.blocks.begun(512, 1)) == (2, 1)  # those before the last are idle


def test_stages_have_their_share_of_a_state(tmp_path: Path) -> None:
    layout = kv_layout(Shard(read(tmp_path, CODESTRAL)), 16, 8192)
    assert layout.stage_bytes([32]) == STATES / 2


def test_states_of_a_draft_are_blocks_of_the_same_pool(tmp_path: Path) -> None:
    target, draft = Shard(read(tmp_path, CODESTRAL)), Shard(read(tmp_path, SMALL))
    layout = kv_layout(target, 16, 8192, draft=draft)
    assert (layout.n_layers, layout.blocks.n_states) == (24, 3 + 1)  # 64 layers take three blocks, the draft's 24 one


@pytest.mark.parametrize("of_target", [True, False])
def test_a_draft_or_a_target_may_attend_where_the_other_keeps_states(tmp_path: Path, of_target: bool) -> None:
    models: list[ModelSpec] = [read(tmp_path, CODESTRAL), simserve.catalog.load_model("llama-3.2-1b")]
    target, draft = models if of_target else reversed(models)
    layout = kv_layout(Shard(target), 16, 8192, draft=Shard(draft))
    least = -(-128 * 64 * 128 * 2 // 2048 // 16) * 16  # tokens of a layer of Llama as large as a state
    assert layout.block_size >= least
    assert layout.blocks.grows
    assert layout.blocks.n_states > 0


@pytest.mark.parametrize(
    "pools",
    [
        [{}],
        [{"parallel": {"tensor": 4}}],
        [{"parallel": {"pipeline": 2}}],
        [{"parallel": {"data": 2}, "num_gpu_blocks": 3}],
        [{"enable_prefix_caching": True}],
        [{"enable_prefix_caching": True, "host_tier": {"bytes": 100e9}}],
        [{"num_gpu_blocks": 2, "host_tier": {"bytes": 100e9}, "scheduler": {"kind": "chunked"}}],
        [{"role": "prefill"}, {"role": "decode"}],
        [{"speculation": {"kind": "ngram", "tokens": 2, "acceptance": 0.6}}],
        [{"speculation": {"kind": "medusa", "tokens": 2, "acceptance": 0.6}, "num_gpu_blocks": 5}],
        [{"speculation": {"kind": "draft_model", "model": "draft/config.json", "tokens": 2, "acceptance": 0.6}}],
        [{"scheduler": {"kind": "continuous", "max_num_seqs": 8}}],
    ],
)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_such_a_model_runs_with_other_mechanisms(tmp_path: Path, pools: list[dict[str, Any]], engine: str) -> None:
    (tmp_path / "draft").mkdir()
    read(tmp_path / "draft", SMALL)
    scenario = load_scenario(write(tmp_path, *pools, engine=engine))
    results = simserve.simulate(scenario)
    assert results.summary["requests"]["finished"] == 60
    assert results.summary["preemptions"]["n"] == 0
    for setup in scenario.setups:
        assert results.summary["kv"]["peak_blocks"] <= setup.ledger.n_blocks


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_as_many_requests_run_as_there_are_states(tmp_path: Path, engine: str) -> None:
    at_once = {**LOAD, "client": {"kind": "closed_loop", "concurrency": 10}}
    del at_once["arrivals"]
    scenario = write(tmp_path, {"num_gpu_blocks": 7, "scheduler": {"kind": "chunked"}}, engine=engine, workload=at_once)
    summary = simserve.simulate(load_scenario(scenario)).summary
    assert summary["kv"]["peak_blocks"] == 7
    assert (summary["kv"]["blocks"], summary["kv"]["tokens"]) == (7, 0)


def test_bandwidth_that_decoding_uses_is_that_of_weights_and_states(tmp_path: Path) -> None:
    lengths = {"kind": "fixed", "prompt_tokens": 1, "output_tokens": 500}
    load = {"client": {"kind": "closed_loop", "concurrency": 64}, "lengths": lengths, "n_requests": 64}
    scenario = load_scenario(write(tmp_path, engine="ideal", workload=load))
    summary = simserve.simulate(scenario).summary
    n_bytes = 499 * (2 * (7_281_840_128 - 32_768 * 4096) + 64 * 2 * STATES)  # embeddings are looked up
    assert summary["mbu"] == pytest.approx(n_bytes / 3.35e12 / summary["window"]["duration_s"], rel=0.01)
    assert summary["mbu"] > 0.9


def test_states_cross_the_link_and_no_token_does(tmp_path: Path) -> None:
    for how in ({"how": "pull"}, {"how": "push", "transfer": "by_layer"}, {"how": "push", "transfer": "by_chunk"}):
        link = {"bytes_per_s": 50e9, "latency_s": 1e-5, **how}
        file = write(tmp_path, {"role": "prefill"}, {"role": "decode"}, cluster={"kv_link": link})
        transfer = simserve.simulate(load_scenario(file)).summary["transfer"]
        assert transfer["n"] > 50  # all but those of one output token
        assert transfer["bytes"] == pytest.approx(transfer["n"] * STATES)


def test_prompts_hit_states_at_the_ends_of_blocks(tmp_path: Path) -> None:
    prefixes = {"kind": "conversations", "turns": [2, 5], "think_s": {"mean": 5}, "system_tokens": 1000}
    load = {**LOAD, "prefixes": {**prefixes, "max_prompt_tokens": 8000, "block_tokens": 256}}
    file = write(tmp_path, {"enable_prefix_caching": True}, workload=load)
    cache = simserve.simulate(load_scenario(file)).summary["prefix_cache"]
    assert cache["hit_tokens"] > 0
    assert cache["hit_tokens"] % 256 == 0


REFUSED = [
    (CODESTRAL, {"parallel": {"tensor": 3}}, "must divide the model's 128 heads of states, got 3; try 1, 2, 4 or 8"),
    (
        {**CODESTRAL, "n_groups": 2, "num_heads": 18, "intermediate_size": 1152},
        {"parallel": {"tensor": 3}},
        "must divide the model's 2 groups of these, or be a multiple, got 3; try 1, 2 or 6",
    ),
    (FALCON, {"parallel": {"tensor": 7}}, "must divide the model's 8192 heads of states, got 7"),
    (
        CODESTRAL,
        {"parallel": {"tensor": 2, "decode_context": 2}},
        "parallel.decode_context: divides keys and values by token, and states keeps states alone, got 2; leave it out",
    ),
    (
        CODESTRAL,
        {"speculation": {"kind": "eagle", "tokens": 2, "acceptance": 0.6}},
        "eagle proposes with a layer like those that attend, and states has none, got 'eagle'; "
        "use draft_model, medusa or ngram",
    ),
]


@pytest.mark.parametrize(("config", "pool", "message"), REFUSED)
def test_what_needs_attention_is_refused(
    tmp_path: Path, config: dict[str, Any], pool: dict[str, Any], message: str
) -> None:
    folder = tmp_path / "states"
    folder.mkdir()
    with pytest.raises(ScenarioError) as caught:
        load_scenario(write(folder, pool, config=config))
    assert message in str(caught.value)


def test_explain_shows_states_rather_than_tokens(tmp_path: Path) -> None:
    file = write(tmp_path, {"num_gpu_blocks": 400, "host_tier": {"bytes": 100e9}})
    (pool,) = explain(load_scenario(file)).pools
    assert (pool.kv_tokens, pool.n_blocks, pool.fills_blocks) == (None, 400, False)
    shown = invoke("explain", str(file))
    assert "states: 400 blocks for requests of any length, per replica (given by the scenario)" in shown.out
    assert f"host: {int(100e9 // STATES)} states" in shown.out
    assert "prefixes hit" not in shown.out
    kept = invoke("explain", str(write(tmp_path, {"enable_prefix_caching": True})))
    assert "block: 256 tokens, as a state fills one; prefixes hit at its multiples" in kept.out


def test_a_model_alone_has_states_and_a_number_of_requests_by_card(tmp_path: Path) -> None:
    read(tmp_path, FALCON)
    answer = json.loads(invoke("explain", "--model", str(tmp_path / "config.json"), "--json").out)
    (group,) = answer["requests"]["8192"]
    assert (group["kind"], group["bytes_per_token"], group["longest_bytes"]) == ("state", 0, 64 * 8192 * 38)
    (room,) = [each for each in answer["fits"] if (each["gpu"], each["weight_dtype"]) == ("h100-sxm", "bf16")]
    assert (room["tensor"], room["kv_tokens"]) == (1, None)
    assert room["n_requests"] > 1000
    shown = invoke("explain", "--model", str(tmp_path / "config.json")).out
    assert re.search(rf"h100-sxm +bf16 +1 .* {room['n_requests']:,} +any\n", shown)


def test_a_scenario_of_such_a_model_runs_from_the_command_line(tmp_path: Path) -> None:
    result = invoke("run", str(write(tmp_path)), "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.err
    assert "60 of 60 requests finished" in result.out
    assert "states" in (tmp_path / "out" / "report.html").read_text("utf-8")


def test_sizes_that_a_file_leaves_out_are_those_of_its_family(tmp_path: Path) -> None:
    mamba = {"model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "vocab_size": 50280}
    model = read(tmp_path, mamba)
    assert model.tie_word_embeddings
    assert model.linear is not None
    assert model.linear.state_bytes == 5120 * (16 * 2 + 3 * 2)
    assert model.linear.matrices(2560)["state"] == (5120, 160 + 2 * 16)  # step sizes from a sixteenth of the width
    assert (model.n_bare_layers, model.n_state_layers, model.intermediate_size) == (64, 64, 0)


WRONG = [
    ({**CODESTRAL, "intermediate_size": 4096}, r'intermediate_size: only "num_heads\*head_dim" is supported, got 4096'),
    ({**CODESTRAL, "n_groups": 7}, "n_groups must divide num_heads 128, got 7"),
    ({**FALCON, "d_inner": 4096}, 'd_inner: only "intermediate_size" is supported, got 4096'),
    ({**FALCON, "intermediate_size": 5000}, "hidden_size must divide intermediate_size, 5000, got 4096"),
    ({**RAW, "ssm_cfg": {}}, "ssm_cfg.layer is missing"),
    ({**RAW, "ssm_cfg": {"layer": "Mamba1"}}, 'ssm_cfg.layer: only "Mamba2" is supported, got "Mamba1"'),
    ({**RAW, "d_intermediate": 64}, "d_intermediate: only 0 is supported, got 64"),
    ({**RAW, "attn_layer_idx": [9]}, r"not understood, got attn_layer_idx: \[9\]"),
]


@pytest.mark.parametrize(("config", "message"), WRONG)
def test_keys_that_contradict_each_other_or_add_attention_are_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(CatalogError, match=message):
        read(tmp_path, config)


def test_a_card_is_timed_without_attention_for_such_a_model(tmp_path: Path) -> None:
    model = read(tmp_path, CODESTRAL)
    shapes = shapes_to_time([model], simserve.catalog.load_gpu("h100-sxm"), ("bf16",), 1)
    assert {shape["op"] for shape in shapes} == {"gemm", "host_copy"}
    assert (4096, 2 * 8192 + 2 * 8 * 128 + 128) in {(shape["k"], shape["n"]) for shape in shapes if "k" in shape}
