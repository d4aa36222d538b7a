"""Contexts and prompts divided over GPUs: KV bytes, capacity and exchanges by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from simserve import catalog, load_scenario, simulate
from simserve.cost.kernels import draft_shard, n_copies
from simserve.cost.kv_groups import kv_layout
from simserve.cost.shard import Shard
from simserve.cost.step import StepCost
from simserve.errors import ScenarioError
from simserve.explain.explain import explain
from simserve.units import to_s
from tests.catalog.test_published import CONFIGS, read
from tests.cli.invoke import invoke
from tests.cost.specs import H100, IDEAL

DEEPSEEK, LLAMA, QWEN = (catalog.load_model(name) for name in ("deepseek-v3", "llama-3.1-70b", "qwen3-235b-a22b"))
SCENARIO = """
schema: simserve/1
name: context
model: {model}
gpu: b200
weight_dtype: {dtype}
cluster:
  pools: [{{{more}parallel: {parallel}}}]
workload:
  arrivals: {{kind: poisson, rate_per_s: 4}}
  lengths: {{kind: fixed, prompt_tokens: 5000, output_tokens: 60}}
  n_requests: 40
"""


def written(
    tmp_path: Path, parallel: str, model: str = "deepseek-v3", dtype: str = "fp8_block", more: str = ""
) -> Path:
    file = tmp_path / "context.yaml"
    file.write_text(SCENARIO.format(model=model, dtype=dtype, parallel=parallel, more=more))
    return file


def test_gpus_hold_a_token_of_latent_vectors_once() -> None:
    """576 values of two bytes in 61 layers, and one eighth of them on each of eight GPUs."""
    whole, divided = Shard(DEEPSEEK, tensor=8), Shard(DEEPSEEK, tensor=8, decode_context=8)
    assert whole.kv_bytes_per_token == 576 * 2 * 61
    assert divided.kv_bytes_per_token == 576 * 2 * 61 / 8
    assert divided.whole == whole.whole


def test_gpus_hold_a_token_of_copied_heads_once() -> None:
    """Qwen3-235B has 4 KV heads of 128 values: 8 GPUs hold each twice, or half of its tokens."""
    assert (n_copies(QWEN, 8), n_copies(LLAMA, 8), n_copies(LLAMA, 4), n_copies(DEEPSEEK, 16)) == (2, 1, 1, 16)
    assert Shard(QWEN, tensor=8).layer_kv_bytes_per_token == 2 * 128 * 2
    assert Shard(QWEN, tensor=8, decode_context=2).layer_kv_bytes_per_token == 128 * 2


def test_eight_gpus_hold_eight_times_the_tokens(tmp_path: Path) -> None:
    one, eight = (
        load_scenario(written(tmp_path, f"{{tensor: 8, decode_context: {n}}}")).setups[0].ledger for n in (1, 8)
    )
    assert (eight.kv_tokens, eight.n_blocks, eight.block_size) == (8 * one.kv_tokens, one.n_blocks, 8 * one.block_size)
    assert (eight.block_bytes, eight.weights_bytes) == (one.block_bytes, one.weights_bytes)


def test_a_state_is_not_divided_and_windows_are() -> None:
    """A state takes a block of as many bytes, which holds twice the tokens; keys of a window halve."""
    hybrid = catalog.load_model("qwen3-next-80b-a3b")
    one, two = (kv_layout(Shard(hybrid, tensor=4, decode_context=n), 16 * n, None) for n in (1, 2))
    per_request = [[part.bytes_per_request for part in layout.parts] for layout in (one, two)]
    per_token = [[part.bytes_per_token for part in layout.parts] for layout in (one, two)]
    assert per_request[0] == per_request[1]
    assert max(per_request[0]) > 0
    assert per_token[0] == [2 * n for n in per_token[1]]
    assert two.block_size == pytest.approx(2 * one.block_size, rel=0.02)
    windowed = catalog.load_model("gpt-oss-120b")
    one, two = (kv_layout(Shard(windowed, tensor=16, decode_context=n), 16 * n, 8192) for n in (1, 2))
    assert [part.bytes_per_token for part in one.parts] == [2 * part.bytes_per_token for part in two.parts]
    assert {part.group.kind for part in two.parts} == {"full", "windowed"}


def test_the_exchange_of_queries_by_hand() -> None:
    """256 queries of DeepSeek-V3's 128 heads: 576 values each go out and 512 come back, and 4 bytes from each GPU."""
    cost = StepCost(Shard(DEEPSEEK, tensor=8, decode_context=8), H100, IDEAL)
    n_bytes = 256 * 128 * (576 * 2 + 8 * 4 + 512 * 2)
    by_hand_s = 3 * H100.link_latency_s + 7 / 8 * n_bytes / H100.link_bytes_per_s
    assert cost.context.queries_s(256) == pytest.approx(by_hand_s)
    assert cost.context.step_s(0, 256) == pytest.approx(61 * by_hand_s)
    alone = StepCost(Shard(DEEPSEEK, tensor=8), H100, IDEAL)
    assert cost.decode_line(8)[1] == pytest.approx(alone.decode_line(8)[1] / 8, abs=1)


def test_a_gpu_reads_its_part_of_the_keys() -> None:
    """One KV head of 128 values, with 16 instead of 8 query heads: the line has half the slope; other work stays."""
    one, two = (StepCost(Shard(QWEN, tensor=8, decode_context=n), H100, IDEAL) for n in (1, 2))
    assert two.decode_line(64)[1] == pytest.approx(one.decode_line(64)[1] / 2, abs=1)
    assert two.decode_line(64)[1] == pytest.approx(94 * (2 * 128 * 2 / 2) / H100.hbm_bytes_per_s * 1e12, rel=1e-3)
    queries_s = 8 * 128 * 2 * 2 * 64 / H100.hbm_bytes_per_s  # of the other GPU's heads, in and out
    more_s = 94 * (two.context.queries_s(64) + queries_s)
    assert to_s(two.decode_line(64)[0] - one.decode_line(64)[0]) == pytest.approx(more_s)
    assert two.tokens_ps(64) == pytest.approx(one.tokens_ps(64), rel=1e-3)


def test_prefill_gathers_cached_vectors_or_exchanges_queries() -> None:
    latent = StepCost(Shard(DEEPSEEK, tensor=8, decode_context=8), H100, IDEAL)
    assert latent.context.prompt_s(512, 512) == 0
    by_hand_s = H100.link_latency_s + 7 / 8 * 10_000 * 576 * 2 / H100.link_bytes_per_s
    assert latent.context.prompt_s(512, 10_512) == pytest.approx(by_hand_s)
    heads = StepCost(Shard(QWEN, tensor=8, decode_context=2), H100, IDEAL)
    assert heads.context.prompt_s(512, 512) == heads.context.queries_s(512) > 0


def test_groups_gather_each_others_keys_and_values() -> None:
    """Llama-3.1-70B on 4 GPUs: two KV heads of 128 values, keys and values, of 8192 tokens; over two nodes of eight
    GPUs each gathers with the other node first, then in its own."""
    near, far = (StepCost(Shard(LLAMA, tensor=4, prefill_context=n), H100, IDEAL).context for n in (2, 4))
    n_bytes = 8192 * 2 * 2 * 128 * 2
    links = H100.group_bytes_per_s(2)
    near_s = H100.link_latency_s + n_bytes / 2 / links
    assert near.prompt_s(8192, 8192) == pytest.approx(near_s)
    link = far.links.node_link
    assert far.prompt_s(8192, 8192) == pytest.approx(near_s + link.latency_s + n_bytes / 2 / 2 / link.bytes_per_s)


def test_a_prompt_gets_shorter_with_more_groups_but_not_in_proportion() -> None:
    costs = [StepCost(Shard(LLAMA, tensor=4, prefill_context=n), H100, IDEAL) for n in (1, 2, 4)]
    one, two, four = (cost.mixed_ps(16384, 16384 * 16385 // 2, 16384, 0, 0, 1) for cost in costs)
    assert one / 2 < two < 0.7 * one
    assert two / 2 < four < 0.7 * two
    assert len({cost.mixed_ps(0, 0, 0, 32, 32_000, 32) for cost in costs}) == 1
    assert [cost.own_tokens(10) for cost in costs] == [10, 5, 3]


def test_states_of_prompts_take_as_long_in_groups() -> None:
    hybrid = catalog.load_model("qwen3-next-80b-a3b")
    costs = [StepCost(Shard(hybrid, tensor=4, prefill_context=n), H100, IDEAL) for n in (1, 2)]
    one, two = (cost.mixed_ps(8192, 8192 * 8193 // 2, 8192, 0, 0, 1) for cost in costs)
    assert one / 2 < two < one


def test_a_draft_divides_as_far_as_it_has_copies() -> None:
    target, draft = Shard(DEEPSEEK, tensor=8, decode_context=8), catalog.load_model("llama-3.2-1b")
    assert draft_shard(target, draft, "bf16").decode_context == 1
    assert draft_shard(target, replace(draft, n_kv_heads=2), "bf16").decode_context == 4


@pytest.mark.parametrize(
    ("model", "parallel", "problem"),
    [
        (
            "llama-3.1-70b",
            "{tensor: 8, decode_context: 2}",
            "must divide 1, the GPUs with copies of the same keys",
        ),
        ("qwen3-235b-a22b", "{tensor: 8, decode_context: 4}", "got 4; use 1 or 2"),
        ("deepseek-v3", "{tensor: 8, decode_context: 3}", "(latent vectors over parallel.tensor 8)"),
        ("deepseek-v3", "{tensor: 8, decode_context: 0}", "parallel.decode_context"),
        ("llama-3.1-70b", "{tensor: 4, prefill_context: 3}", "groups fill one node or several, 8 GPUs each"),
    ],
)
def test_a_division_that_cannot_be_is_refused(tmp_path: Path, model: str, parallel: str, problem: str) -> None:
    with pytest.raises(ScenarioError, match="context"):
        load_scenario(written(tmp_path, parallel, model))
    result = invoke("run", str(written(tmp_path, parallel, model)))
    assert result.exit_code == 2
    assert problem in " ".join(result.err.split())
    assert "context.yaml:8" in result.err


def test_a_refused_division_names_the_heads_of_windows(tmp_path: Path) -> None:
    """MiMo-V2-Flash has 4 KV heads, and 8 in layers with a window: of eight GPUs, none has a copy of these."""
    read(tmp_path, CONFIGS["MiMo-V2-Flash"])
    with pytest.raises(ScenarioError, match=r"must divide 1, the GPUs .* \(4 and 8 KV heads over parallel.tensor 8\)"):
        load_scenario(written(tmp_path, "{tensor: 8, decode_context: 2}", str(tmp_path / "config.json")))


@pytest.mark.parametrize(
    ("model", "parallel", "more"),
    [
        ("deepseek-v3", "{tensor: 8, decode_context: 8}", "speculation: {kind: mtp, tokens: 2, acceptance: 0.8}, "),
        (
            "deepseek-v3",
            "{tensor: 8, pipeline: 2, decode_context: 4, prefill_context: 2}",
            "host_tier: {bytes: 1e12}, ",
        ),
        ("qwen3-235b-a22b", "{tensor: 8, data: 2, expert: 16, decode_context: 2, prefill_context: 2}", ""),
        ("qwen3-next-80b-a3b", "{tensor: 4, prefill_context: 2, decode_context: 2}", "enable_prefix_caching: true, "),
        ("gpt-oss-120b", "{tensor: 16, decode_context: 2, prefill_context: 2}", "scheduler: {kind: chunked}, "),
        ("deepseek-v3.2", "{tensor: 8, decode_context: 8, prefill_context: 2}", ""),
    ],
)
def test_it_runs_with_other_mechanisms(tmp_path: Path, model: str, parallel: str, more: str) -> None:
    dtype = "mxfp4" if model.startswith("gpt") else "fp8_block"
    scenario = load_scenario(written(tmp_path, parallel, model, dtype=dtype, more=more))
    (pool,) = explain(scenario).pools
    assert all(0 <= step.context_s < step.attention_s for step in pool.steps)
    assert any(step.context_s > 0 for step in pool.steps if step.phase == "prefill" or "decode_context" in parallel)
    assert scenario.setups[0].parallel.n_gpus == pool.gpus_per_replica
    assert set(simulate(scenario).requests.status) == {"finished"}


def test_a_prefill_pool_divides_prompts_and_a_decode_pool_contexts(tmp_path: Path) -> None:
    prefill = "name: prompts, role: prefill, parallel: {tensor: 8, prefill_context: 2}}, {role: decode, "
    scenario = load_scenario(written(tmp_path, "{tensor: 8, decode_context: 8}", more=prefill))
    one, two = scenario.setups
    assert (one.gpus_per_replica, two.gpus_per_replica, two.ledger.block_size) == (16, 8, 128)
    assert set(simulate(scenario).requests.status) == {"finished"}
