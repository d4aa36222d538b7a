"""Speculation in a scenario: what it fills in, what it takes of the memory, and what does not go together."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from simserve import catalog, simulate
from simserve.cost.shard import Shard
from simserve.cost.weights import weights_bytes
from simserve.scenario import Scenario

Load = Callable[..., Scenario]
MessagesOf = Callable[..., list[str]]

HERE = "cluster.pools.0.speculation"
DRAFT = "{kind: draft_model, model: llama-3.2-1b, tokens: 4, acceptance: 0.7}"
NGRAM = "{kind: ngram, tokens: 4, acceptance: 0.5}"


def with_it(small: str, how: str, more: str = "") -> str:
    return f"{small}cluster:\n  pools:\n    - speculation: {how}\n{more}"


def test_a_draft_model_is_stored_as_its_target_and_resolves_to_the_same(load: Load, small: str) -> None:
    scenario = load(with_it(small, DRAFT))
    requested = scenario.cluster.pools[0].speculation
    assert requested is not None
    assert (requested.weight_dtype, requested.rates) == ("bf16", (0.7,) * 4)
    assert scenario.origins[f"{HERE}.weight_dtype"] == "weight_dtype"
    assert load(scenario.to_yaml()) == scenario


def test_ranks_share_the_experts_of_a_draft_layer_as_those_of_the_model(load: Load, small: str) -> None:
    text = small.replace("llama-3.1-8b", "deepseek-v3").replace("h100-sxm", "h200-sxm") + "weight_dtype: fp8_block\n"
    pool = "cluster:\n  pools:\n    - parallel: {data: 8, expert: 8}\n"
    (plain,), (mtp,) = (
        load(text + pool + more).setups
        for more in ("", "      speculation: {kind: mtp, tokens: 1, acceptance: 0.85}\n")
    )
    an_expert = 3 * 7168 * 2048
    more_bytes = mtp.ledger.weights_bytes - plain.ledger.weights_bytes
    # a layer with 32 of 256 experts, one shared expert, attention and a merging matrix; all experts would be 11 GB
    assert 33 * an_expert < more_bytes < 33 * an_expert + 0.6e9


def test_the_draft_takes_its_weights_and_its_keys_from_the_blocks(load: Load, small: str) -> None:
    (plain,), (with_draft,), (ngram,) = (
        load(text).setups for text in (small, with_it(small, DRAFT), with_it(small, NGRAM))
    )
    draft = Shard(catalog.load_model("llama-3.2-1b"))
    assert weights_bytes(draft) == pytest.approx(1_235_814_400 * 2)  # as the model card counts it
    assert with_draft.ledger.weights_bytes - plain.ledger.weights_bytes == weights_bytes(draft)
    assert with_draft.ledger.block_bytes - plain.ledger.block_bytes == 16 * (2 * 16 * 8 * 64 * 2)  # K and V, 16 layers
    assert with_draft.ledger.n_blocks < plain.ledger.n_blocks == ngram.ledger.n_blocks


def test_a_layer_shares_embeddings_and_heads_and_medusa_has_its_own(load: Load, small: str) -> None:
    layer_weights = 218_103_808 + 2 * 4096  # of Llama-3.1-8B, and its two norms
    (plain,) = load(small).setups
    (eagle,) = load(with_it(small, "{kind: eagle, tokens: 3, acceptance: 0.8}")).setups
    more_bytes = eagle.ledger.weights_bytes - plain.ledger.weights_bytes
    assert more_bytes == (layer_weights + 2 * 4096 * 4096) * 2
    assert eagle.ledger.block_bytes == plain.ledger.block_bytes * 33 / 32
    (medusa,) = load(with_it(small, "{kind: medusa, tokens: 3, acceptance: 0.6}")).setups
    assert medusa.ledger.weights_bytes - plain.ledger.weights_bytes == 3 * (4096 * 4096 + 4096 * 128256) * 2


def test_a_head_of_its_own_is_read_whatever_its_context(load: Load, small: str, tmp_path: Path) -> None:
    """EAGLE-3 for Llama-3.1-8B: an MLP as wide, an LM head of 32,000 tokens, and a context of 2,048."""
    head = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 1,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "draft_vocab_size": 32000,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "eagle_config": {"use_aux_hidden_state": True},
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(head))
    plain, given = (
        "{kind: eagle, tokens: 3, acceptance: 0.8}",
        f"{{kind: eagle, tokens: 3, acceptance: 0.8, model: {file}}}",
    )
    (shared,), (own,) = (load(with_it(small, how)).setups for how in (plain, given))
    assert own.ledger.weights_bytes - shared.ledger.weights_bytes == (32000 * 4096 + 4096) * 2  # and the last norm
    assert own.max_model_len == shared.max_model_len > 2048
    scenario = load(with_it(small, given))
    requested = scenario.cluster.pools[0].speculation
    assert requested is not None
    assert requested.weight_dtype == "bf16"
    assert scenario.origins[f"{HERE}.weight_dtype"].startswith("model ")
    assert load(scenario.to_yaml()) == scenario
    quantized = load(with_it(small, given), "weight_dtype=fp8").cluster.pools[0].speculation
    assert quantized is not None
    assert quantized.weight_dtype == "bf16"


def test_layers_of_a_draft_are_groups_of_their_own(load: Load, small: str) -> None:
    """Gemma 3 1B before 27B; its blocks are those of vLLM's hybrid manager (tests/cost/test_kv_groups.py)."""
    text = small.replace("llama-3.1-8b", "gemma-3-27b")
    how = "{kind: draft_model, model: gemma-3-1b, tokens: 4, acceptance: 0.7}"
    (setup,) = load(with_it(text, how, "      max_model_len: 32768\n")).setups
    assert setup.ledger.block_bytes == 4 * 16 * 8192
    assert setup.ledger.layout.blocks.filled(128) == 8 * 16 + 7
    blocks, n_tokens = setup.ledger.layout.blocks, setup.ledger.kv_tokens
    assert blocks.filled(n_tokens) <= setup.ledger.n_blocks < blocks.filled(n_tokens + 16)
    kinds = [(group.layers.kind, group.layers.window) for group in blocks.windows]
    assert kinds == [("windowed", 1024), ("windowed", 512)]


def test_a_draft_with_states_runs(load: Load, small: str) -> None:
    """Qwen3.5-27B before 122B: the full layers of both share a block, and states for each of three tokens take two."""
    text = small.replace("llama-3.1-8b", "qwen3.5-122b-a10b").replace("h100-sxm", "b200-sxm")
    how = "{kind: draft_model, model: qwen3.5-27b, tokens: 2, acceptance: 0.7}"
    scenario = load(with_it(text, how, "      parallel: {tensor: 4}\n"))
    (setup,) = scenario.setups
    layout = setup.ledger.layout
    assert [(part.group.kind, part.group.n_layers) for part in layout.parts] == [
        ("state", 36),
        ("full", 12),
        ("state", 48),
        ("full", 16),
    ]
    assert (layout.n_layers, layout.blocks.filled(1), layout.blocks.held(1)) == (28, 1, 1 + 3 * (2 + 2))
    assert simulate(scenario).summary["requests"]["finished"] == 100


def test_no_tokens_are_plain_decoding(load: Load, small: str) -> None:
    scenario = load(with_it(small, "{kind: ngram, tokens: 0, acceptance: [0.5, 0.4]}"))
    assert scenario.setups[0].speculation is None
    assert scenario.setups[0].ledger == load(small).setups[0].ledger


def test_a_default_number_of_seats_gives_way_to_what_they_verify(load: Load, small: str) -> None:
    scenario = load(with_it(small, "{kind: ngram, tokens: 15, acceptance: 0.5}"))
    scheduler = scenario.cluster.pools[0].scheduler
    assert scheduler is not None
    assert (scheduler["max_num_batched_tokens"], scheduler["max_num_seqs"]) == (8192, 512)
    assert scenario.origins["cluster.pools.0.scheduler.max_num_seqs"] == "no more than max_num_batched_tokens by 16"
    assert load(scenario.to_yaml()) == scenario


def test_what_proposes_on_the_host_is_not_planned_ahead(load: Load, small: str) -> None:
    ahead = "engine={name: vllm, version: '0.20'}"
    (drafting,), (on_host,) = (load(with_it(small, how), ahead).setups for how in (DRAFT, NGRAM))
    assert drafting.plans_ahead and drafting.hides_host
    assert not on_host.plans_ahead and not on_host.hides_host


@pytest.mark.parametrize(
    ("version", "more", "pool", "plans_ahead", "hides_host"),
    [
        ("0.12", "", "parallel: {tensor: 2}", False, False),
        ("0.13", ", async_scheduling: true", "parallel: {tensor: 2}", True, True),
        ("0.14", "", "parallel: {tensor: 2}", True, True),
        ("0.14", ", async_scheduling: false", "parallel: {tensor: 2}", False, False),
        ("0.14", "", "parallel: {pipeline: 2}", False, False),
        ("0.19", "", "parallel: {pipeline: 2}", False, False),
        ("0.20", "", "parallel: {pipeline: 2}", False, False),
        ("0.15", ", async_scheduling: true", "parallel: {pipeline: 2}", True, False),
        ("0.14", "", "speculation: {kind: eagle, tokens: 3, acceptance: 0.8}", True, True),
        ("0.15", "", f"speculation: {DRAFT}", False, False),
        ("0.15", ", async_scheduling: true", f"speculation: {DRAFT}", True, True),
    ],
)
def test_versions_plan_ahead_with_what_they_can(
    load: Load, small: str, version: str, more: str, pool: str, plans_ahead: bool, hides_host: bool
) -> None:
    text = f"{small}cluster: {{pools: [{{{pool}}}]}}\n"
    (setup,) = load(text, f"engine={{name: vllm, version: '{version}'{more}}}").setups
    assert (setup.plans_ahead, setup.hides_host) == (plans_ahead, hides_host)
    assert (setup.step_cost().host_ps(1) > 0) == hides_host


@pytest.mark.parametrize(
    ("how", "overrides", "message"),
    [
        (
            "{kind: ngram, tokens: 3, acceptance: [0.7, 0.6]}",
            [],
            f"a.yaml:11: {HERE}.acceptance: must be one rate, or one for each of the 3 tokens, got [0.7, 0.6]",
        ),
        ("{kind: ngram, tokens: 3, acceptance: 1.2}", [], "acceptance"),
        ("{kind: ngram, tokens: 3}", [], f"{HERE}.acceptance: is missing"),
        ("{kind: ngram, tokens: -1, acceptance: 0.7}", [], f"{HERE}.tokens: must be at least 0, got -1"),
        ("{kind: ngram, tokens: 33, acceptance: 0.7}", [], f"{HERE}.tokens: must be at most 32, got 33"),
        ("{kind: n-gram, tokens: 3, acceptance: 0.7}", [], f"{HERE}.kind"),
        (
            "{kind: draft_model, tokens: 3, acceptance: 0.7}",
            [],
            f"{HERE}.model: is required for draft_model; name a small one",
        ),
        (
            "{kind: medusa, tokens: 3, acceptance: 0.7, model: llama-3.2-1b}",
            [],
            f"{HERE}.model: is for draft_model or eagle, not medusa, got 'llama-3.2-1b'; leave it out",
        ),
        (
            "{kind: eagle, tokens: 3, acceptance: 0.7, model: llama-3.2-1b}",
            [],
            f"a.yaml:11: {HERE}.model: must have the hidden size of llama-3.1-8b, 4096, as a head reads its layers, "
            "got 2048; use the config.json of a head that was trained for it",
        ),
        (
            "{kind: eagle, tokens: 3, acceptance: 0.7, weight_dtype: nvfp4}",
            [],
            f"{HERE}.weight_dtype: ",
        ),
        (
            DRAFT,
            ["model=llama-3.2-1b", f"{HERE}.model=llama-3.1-8b"],
            "must be smaller than its target llama-3.2-1b; their weights take 16.1 GB and 2.5 GB, got 'llama-3.1-8b'",
        ),
        (
            DRAFT,
            [f"{HERE}.model=qwen3-0.6b"],
            "must have the 128256 tokens of llama-3.1-8b, which verifies its proposals, not 151936, got 'qwen3-0.6b'; "
            "use a smaller model of the same family",
        ),
        (
            DRAFT,
            [f"{HERE}.model=llama-3.2-1"],
            "no such model in the catalog, or the path of a config.json, got 'llama-3.2-1'",
        ),
        (
            "{kind: mtp, tokens: 1, acceptance: 0.8}",
            [],
            f"a.yaml:11: {HERE}.kind: mtp needs a layer that predicts further tokens, and llama-3.1-8b has none, "
            "got 'mtp'; use eagle, draft_model or ngram, or a config.json that counts it in num_nextn_predict_layers",
        ),
        (
            DRAFT,
            ["cluster.pools.0.scheduler=static"],
            "static pads whole batches, so its requests cannot get several tokens per step; use chunked",
        ),
        (
            NGRAM,
            ["cluster.pools.0.scheduler={kind: chunked, max_num_batched_tokens: 256, max_num_seqs: 100}"],
            "a step verifies 5 tokens of each of max_num_seqs, 100, and max_num_batched_tokens is 256; use "
            "max_num_seqs: 51",
        ),
        (
            NGRAM,
            ["engine={name: vllm, async_scheduling: true}"],
            "engine.async_scheduling: ngram proposes from tokens on the host, so no step is planned ahead, got true",
        ),
        (
            DRAFT,
            ["cluster.pools.0.scheduler={kind: chunked, max_num_batched_tokens: 4}"],
            "a step verifies 5 tokens of each of max_num_seqs, 4, and max_num_batched_tokens is 4; use "
            "max_num_batched_tokens: 20",
        ),
    ],
)
def test_what_does_not_go_together_is_a_mistake(
    messages_of: MessagesOf, small: str, how: str, overrides: list[str], message: str
) -> None:
    result = messages_of(with_it(small, how), *overrides)
    assert any(message in each for each in result), result


def test_requests_may_not_be_longer_than_the_draft_can_read(messages_of: MessagesOf, load: Load, small: str) -> None:
    how = "{kind: draft_model, model: qwen3-0.6b, tokens: 4, acceptance: 0.7}"
    result = messages_of(with_it(small, how))
    assert any("must have the 128256 tokens" in each for each in result)
    padded = load(with_it(small.replace("llama-3.1-8b", "qwen2.5-72b"), how, "      parallel: {tensor: 8}\n"))
    assert padded.cluster.pools[0].max_model_len == 32768  # 151,936 tokens of the draft and 152,064 are the same
    own = load(with_it(small.replace("llama-3.1-8b", "qwen3-8b"), how))
    assert own.cluster.pools[0].max_model_len == 40960


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("num_speculative_tokens", "use cluster.pools.0.speculation.tokens"),
        ("speculative_config", "use cluster.pools.0.speculation"),
        ("method", "use cluster.pools.0.speculation.kind"),
        ("speculative_draft_model_path", "use cluster.pools.0.speculation.model"),
        ("prompt_lookup_max", "the hit rate of n-grams is cluster.pools.0.speculation.acceptance"),
        ("draft_tensor_parallel_size", "a draft model is sharded as its target is"),
    ],
)
def test_names_of_neighbors_are_told(messages_of: MessagesOf, small: str, key: str, remedy: str) -> None:
    how = NGRAM.replace("}", f", {key}: 1}}")
    assert any(remedy in each for each in messages_of(with_it(small, how)))
