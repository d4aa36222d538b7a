"""Which pools keep prefixes: as given, else as the engine, where pool and policy can."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simserve.metrics.results import Results
from simserve.scenario import Scenario
from simserve.simulation import simulate

Load = Callable[..., Scenario]
MessagesOf = Callable[..., list[str]]
POOL = "cluster.pools.0"
APART = "cluster={pools: [{name: p, role: prefill}, {name: d, role: decode}]}"


@pytest.mark.parametrize(("engine", "caches"), [("vllm", True), ("sglang", True), ("trtllm", True), ("ideal", False)])
def test_left_out_it_is_as_the_engine_has_it(load: Load, small: str, engine: str, caches: bool) -> None:
    scenario = load(small, f"engine={engine}")
    assert scenario.setups[0].caches_prefixes is caches
    assert load(scenario.to_yaml()) == scenario


def test_what_is_given_counts(load: Load, small: str) -> None:
    assert not load(small, f"{POOL}.enable_prefix_caching=false").setups[0].caches_prefixes
    assert load(small, "engine=ideal", f"{POOL}.enable_prefix_caching=true").setups[0].caches_prefixes


def test_without_prefixes_in_the_load_only_preempted_requests_find_blocks(load: Load, small: str) -> None:
    def run(keeps: bool) -> Results:
        overrides = [f"{POOL}.enable_prefix_caching={str(keeps).lower()}", f"{POOL}.num_gpu_blocks=100"]
        return simulate(load(small, *overrides, "workload.n_requests=20", "measure={replays: 0}"))

    lost, found = (run(keeps).requests for keeps in (False, True))
    was_preempted = lost["n_preemptions"] > 0
    assert was_preempted.any() and (found["n_preemptions"] == lost["n_preemptions"]).all()
    assert (lost["n_recomputed_tokens"][was_preempted] >= 512).all()
    assert (found["n_recomputed_tokens"][was_preempted] < 512).all()
    assert not found["cached_tokens"].any()


@pytest.mark.parametrize(("engine", "caches"), [("vllm", True), ("sglang", False)])
def test_so_it_is_in_decode_pools(load: Load, small: str, engine: str, caches: bool) -> None:
    assert [setup.caches_prefixes for setup in load(small, APART, f"engine={engine}").setups] == [True, caches]
    given = load(small, APART, f"engine={engine}", "cluster.pools.1.enable_prefix_caching=true")
    assert given.setups[1].caches_prefixes


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [f"{POOL}.scheduler=continuous"],
            "this policy gives each request memory in one piece, so prefixes are not shared there",
        ),
        (
            [f"{POOL}.scheduler=static"],
            "this policy gives each request memory in one piece, so prefixes are not shared there",
        ),
    ],
)
def test_policies_that_hold_blocks_whole_cannot(
    messages_of: MessagesOf, small: str, overrides: list[str], message: str
) -> None:
    (problem,) = messages_of(small, *overrides, f"{POOL}.enable_prefix_caching=true")
    assert message in problem


@pytest.mark.parametrize("how", ["how: pull", "how: push", "how: push, transfer: by_layer"])
@pytest.mark.parametrize(("caches", "sent_tokens", "found_tokens"), [(True, [100, 106], 144), (False, [100, 250], 0)])
def test_only_what_the_decode_side_lacks_of_a_second_turn_crosses_the_link(
    load: Load, small: str, how: str, caches: bool, sent_tokens: list[int], found_tokens: int
) -> None:
    # Turn 1 leaves 100 prompt tokens and 49 of its 50 output tokens on the decode side, 9 whole blocks of 16; turn 2
    # has 100 + 50 + 100 tokens. A token takes 131,072 bytes: 2 x 32 layers x 8 heads x 128 x 2.
    overrides = [
        APART.replace("]}", f"], kv_link: {{bytes_per_s: 1.0e9, latency_s: 0, {how}}}}}"),
        f"cluster.pools.1.enable_prefix_caching={str(caches).lower()}",
        "workload.lengths={kind: fixed, prompt_tokens: 100, output_tokens: 50}",
        "workload.prefixes={kind: conversations, turns: 2, think_s: 1.0, next_turn: after_answer}",
        "workload.n_requests=2",
    ]
    results = simulate(load(small, *overrides))
    requests, transfer = results.columns["requests"], results.summary["transfer"]
    sent = requests["prompt_tokens"] - requests["decode_cached_tokens"]
    assert sent.tolist() == sent_tokens
    assert (transfer["bytes"], transfer["found_tokens"]) == (131_072 * sum(sent_tokens), found_tokens)
    if "by_layer" not in how:
        on_the_wire_s = requests["transfer_s"] - requests["transfer_wait_s"] * (how == "how: pull")
        assert on_the_wire_s.tolist() == pytest.approx([131_072 * n / 1e9 for n in sent_tokens])


def chats(load: Load, small: str, *overrides: str) -> Results:
    prefixes = "workload.prefixes={kind: shared, n_prefixes: 3, prefix_tokens: 320, block_tokens: 32}"
    return simulate(load(small, prefixes, *overrides))


def test_a_run_finds_what_its_prompts_share(load: Load, small: str) -> None:
    with_cache, without = chats(load, small), chats(load, small, f"{POOL}.enable_prefix_caching=false")
    requests = with_cache.columns["requests"]
    assert set(requests["cached_tokens"].tolist()) == {0, 320}
    assert np.count_nonzero(requests["cached_tokens"] == 0) >= 3  # the first of each, and who came with it
    result = with_cache.summary["prefix_cache"]
    assert result["hit_tokens"] == requests["cached_tokens"].sum()
    assert result["hit_frac"] == pytest.approx(result["hit_tokens"] / (100 * (512 + 320)))
    assert without.summary["prefix_cache"] == {"hit_tokens": 0, "hit_frac": 0.0, "requests_frac": 0.0}
    computed, whole = (float(run.columns["steps"]["prefill_tokens"].sum()) for run in (with_cache, without))
    assert whole - computed == result["hit_tokens"]
    assert with_cache.summary["ttft_s"]["mean"] < without.summary["ttft_s"]["mean"]


def test_a_prefix_is_shared_in_blocks_of_the_engine_of_any_size(load: Load, small: str) -> None:
    results = chats(load, small, f"{POOL}.block_size=48")
    assert set(results.columns["requests"]["cached_tokens"].tolist()) == {0, 288}  # six whole ones of 320 tokens


def test_prompts_share_what_layers_without_a_window_keep(load: Load, small: str) -> None:
    oss = [small.replace("llama-3.1-8b", "gpt-oss-120b"), "weight_dtype=mxfp4", f"{POOL}.parallel.tensor=2"]
    results = chats(load, *oss)
    assert set(results.columns["requests"]["cached_tokens"].tolist()) == {0, 320}
    assert load(*oss).setups[0].caches_prefixes


def test_prompts_of_a_model_of_windows_only_share_prefixes(load: Load, small: str, tmp_path: Path) -> None:
    text = """{"model_type": "mistral", "architectures": ["MistralForCausalLM"], "hidden_size": 4096,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": 64, "torch_dtype": "bfloat16",
        "tie_word_embeddings": false, "hidden_act": "silu"}"""
    (tmp_path / "windows").mkdir()
    (tmp_path / "windows" / "config.json").write_text(text)
    results = chats(load, small, f"model={tmp_path / 'windows' / 'config.json'}")
    assert set(results.columns["requests"]["cached_tokens"].tolist()) == {0, 320}


def test_models_with_states_share_prefixes_where_asked_in_whole_blocks_of_the_raised_size(
    load: Load, small: str
) -> None:
    given = [small, "model=qwen3-next-80b-a3b", f"{POOL}.parallel.tensor=4"]
    plain = load(*given)
    (pool,) = plain.setups
    assert not pool.caches_prefixes
    why = "the states of qwen3-next-80b-a3b are not kept at the ends of prefixes, as in engines by default"
    assert plain.origins[f"{POOL}.enable_prefix_caching"] == why
    size = pool.ledger.block_size
    long = f"workload.prefixes={{kind: shared, n_prefixes: 3, prefix_tokens: {2 * size + 16}, block_tokens: 16}}"
    given = [*given, long, f"{POOL}.enable_prefix_caching=true"]
    windows = load(*given).setups[0].ledger.layout.blocks.windows
    assert [(group.layers.kind, group.n_parts) for group in windows] == [("state", 3)]
    results = chats(load, *given)
    assert set(results.columns["requests"]["cached_tokens"].tolist()) == {0, 2 * size}
