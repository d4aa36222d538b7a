"""`simserve explain --model`: parameters and memory by hand, and a scenario's numbers for the same model and card."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

import simserve
from simserve import Scenario, catalog
from simserve.cost.shard import Shard
from simserve.cost.weights import parameters, weights_bytes
from simserve.errors import SimserveError
from simserve.explain.explain import explain
from simserve.scenario.model_sizes import LOAD, CardRoom, KvGroupAnswer, ModelAnswer
from tests.catalog.test_published import CONFIGS, read
from tests.cli.invoke import invoke
from tests.fuzz.configs import LLAMA

DOCS = Path(__file__).resolve().parents[2] / "docs"

SHARED = (("llama-3.1-8b", 131_072), ("deepseek-v3", 32_768), ("gpt-oss-120b", 131_072), ("qwen3-next-80b-a3b", 65_536))


def groups(answer: ModelAnswer, n_tokens: int) -> list[tuple[Any, ...]]:
    """Return kind, layers, window, bytes of a token and bytes of a request."""
    return [
        (each.kind, each.n_layers, each.window, each.bytes_per_token, each.longest_bytes)
        for each in answer.requests[n_tokens]
    ]


def scenario(model: str, n_tokens: int, fit: CardRoom) -> Scenario:
    """Return the scenario of a model on a card."""
    pool = {"parallel": {"tensor": fit.tensor or 8}, "max_model_len": n_tokens}
    keys = {"schema": "simserve/1", "model": model, "gpu": fit.gpu, "weight_dtype": fit.weight_dtype}
    return Scenario.from_dict({**keys, "cluster": {"pools": [pool]}, "workload": LOAD})


def test_llama_by_hand() -> None:
    answer = simserve.explain_model("llama-3.1-8b")
    # Queries and outputs 4096 x 4096, keys and values 4096 x 1024; three matrices of 4096 x 14336.
    attention, mlp, vocabulary = 32 * (2 * 4096**2 + 2 * 4096 * 1024), 32 * 3 * 4096 * 14_336, 128_256 * 4096
    norms = 65 * 4096
    assert answer.parameters == {
        **dict.fromkeys(("states", "layer_inputs", "routed_experts", "shared_experts", "gates"), 0),
        "embeddings": vocabulary,
        "attention": attention,
        "mlp": mlp,
        "norms": norms,
        "head": vocabulary,
    }
    assert answer.n_parameters == 8_030_261_248
    assert answer.n_active == 8_030_261_248 - vocabulary
    assert answer.weight_dtype == "bf16"
    for n in (8192, 32_768, 131_072):
        assert groups(answer, n) == [("full", 32, None, 131_072, 131_072 * n)]


def test_deepseek_by_hand() -> None:
    answer = simserve.explain_model("deepseek-v3")
    assert round(answer.n_parameters / 1e9) == 671
    assert round(answer.n_active / 1e9) == 37
    assert answer.parameters["routed_experts"] == 58 * 256 * 3 * 7168 * 2048
    assert answer.parameters["shared_experts"] == 58 * 3 * 7168 * 2048
    assert answer.parameters["mlp"] == 3 * 3 * 7168 * 18_432
    assert answer.weight_dtype == "fp8_block"
    assert groups(answer, 32_768) == [("latent", 61, None, 70_272, 61 * 576 * 2 * 32_768)]
    assert {fit.weight_dtype for fit in answer.fits} == {"fp8_block", "bf16"}  # its fp8 is scaled in blocks
    tensors = {fit.gpu: fit.tensor for fit in answer.fits if fit.weight_dtype == "fp8_block"}
    assert (tensors["h100-sxm"], tensors["h200-sxm"], tensors["b300-sxm"]) == (None, 8, 4)


def test_states_by_hand() -> None:
    answer = simserve.explain_model("qwen3-next-80b-a3b")
    # 32 heads of 128 x 128 values, and three inputs of a convolution over 2 x 2048 + 4096 values; in 16 bits.
    state_bytes = 36 * 2 * (32 * 128 * 128 + 3 * 8192)
    states, full = answer.requests[8192]
    assert (states.kind, states.n_layers, states.bytes_per_token) == ("state", 36, 0)
    assert states.bytes_per_request == states.longest_bytes == state_bytes
    # Two KV heads of 256; blocks of 544 tokens hold a state.
    assert (full.n_layers, full.bytes_per_token) == (12, 12 * 2 * 2 * 256 * 2)
    assert full.longest_bytes == -(-8192 // 544) * 544 * full.bytes_per_token
    assert round(answer.n_parameters / 1e9) == 80
    assert 3e9 < answer.n_active < 4e9


def test_windows_by_hand() -> None:
    answer = simserve.explain_model("gpt-oss-120b")
    # A window of 128 tokens lies in nine blocks of 16 at most; eight KV heads of 64 are 2048 bytes a layer.
    for n in (8192, 32_768, 131_072):
        windowed = ("windowed", 18, 128, 18 * 2048, 9 * 16 * 18 * 2048)
        assert groups(answer, n) == [windowed, ("full", 18, None, 18 * 2048, n * 18 * 2048)]
    assert answer.weight_dtype == "mxfp4"
    assert answer.n_active / 1e9 == pytest.approx(5.13, abs=0.005)


@pytest.mark.parametrize("name", catalog.names("models"))
def test_parts_are_the_weights_of_the_ledger(name: str) -> None:
    shard = Shard(catalog.load_model(name))
    absorbed = shard.model.n_layers * (shard.expansion[0] * shard.expansion[1] if shard.expansion else 0)
    assert 2 * (sum(vars(parameters(shard)).values()) + absorbed) == weights_bytes(shard)


@pytest.mark.parametrize(("model", "context"), SHARED)
def test_a_model_alone_agrees_with_its_scenarios(model: str, context: int) -> None:
    """Cards: memory and room of `explain SCENARIO`, whose degree is the first that resolves."""
    answer = simserve.explain_model(model, context=context)
    fits = [fit for fit in answer.fits if fit.tensor is not None]
    assert {fit.gpu for fit in answer.fits} == set(catalog.names("gpus"))
    for fit in fits[::9]:
        resolved = scenario(model, context, fit)
        (setup,), (pool,) = resolved.setups, explain(resolved).pools
        assert (pool.gpus_per_replica, pool.kv_tokens) == (fit.tensor, fit.kv_tokens)
        assert fit.kv_tokens is not None and fit.kv_tokens >= context
        blocks = setup.ledger.layout.blocks
        assert fit.n_requests == pool.n_blocks // blocks.held(8192)
        assert fit.n_longest == pool.n_blocks // blocks.held(context)
        assert (fit.weights_bytes, fit.kv_bytes) == (setup.ledger.weights_bytes, setup.ledger.kv_bytes)
        for alone, sharded in zip(answer.requests[context], pool.kv_groups, strict=True):
            assert (alone.kind, alone.n_layers, alone.window) == (sharded.kind, sharded.n_layers, sharded.window)
            if fit.tensor == 1:
                assert alone.bytes_per_token == sharded.bytes_per_token
                assert alone.bytes_per_request == sharded.bytes_per_request
                if alone.window is None:  # others also hold the tokens of a step
                    assert alone.longest_bytes == sharded.longest_bytes
    too_large = next(fit for fit in answer.fits if fit.tensor is None or fit.tensor > 1)
    smaller = CardRoom(too_large.gpu, too_large.weight_dtype, (too_large.tensor or 16) // 2)
    with pytest.raises(SimserveError, match=r"does not fit the memory|must fit the KV cache"):
        scenario(model, context, smaller)


def test_a_file_is_one_checkpoint(tmp_path: Path) -> None:
    file, tied = tmp_path / "config.json", tmp_path / "tied.json"
    file.write_text(json.dumps(LLAMA))
    tied.write_text(json.dumps({**LLAMA, "tie_word_embeddings": True, "quantization_config": {"quant_method": "fp8"}}))
    plain, of_catalog = simserve.explain_model(str(file)), simserve.explain_model("llama-3.1-8b")
    assert (plain.parameters, plain.requests, plain.fits) == (
        of_catalog.parameters,
        of_catalog.requests,
        of_catalog.fits,
    )
    quantized = simserve.explain_model(str(tied), context=4096)
    assert quantized.n_parameters == plain.n_parameters - 128_256 * 4096
    assert quantized.n_active == plain.n_active
    assert {fit.weight_dtype for fit in quantized.fits} == {"fp8"}
    assert list(quantized.requests) == [4096]


def test_the_command_prints_tables_or_json() -> None:
    outcome = invoke("explain", "--model", "gpt-oss-120b", "--context", "32768")
    assert outcome.exit_code == 0
    assert outcome.err == ""
    assert "gpt-oss-120b in mxfp4: 116.8 billion parameters, 5.131 billion active per t" in outcome.out
    assert "before GPUs divide it: KV cache in bf16\n" in outcome.out
    assert "  windowed 128  18 layers  36,864 B       5.31 MB        5.31 MB\n" in outcome.out
    rows = [line.split() for line in outcome.out.splitlines()]
    assert ["all", "307.30", "MB", "1.2", "GB"] in rows
    assert ["a10", "bf16", *"------"] in rows
    b200 = next(fit for fit in simserve.explain_model("gpt-oss-120b", context=32_768).fits if fit.gpu == "b200-sxm")
    assert b200.weights_bytes is not None and b200.kv_bytes is not None
    sizes = [f"{b200.weights_bytes / 1e9:.1f}", "GB", f"{b200.kv_bytes / 1e9:.1f}", "GB"]
    counts = [f"{n:,}" for n in (b200.n_requests, b200.n_longest, b200.kv_tokens)]
    assert ["b200-sxm", b200.weight_dtype, str(b200.tensor), *sizes, *counts] in rows
    printed = json.loads(invoke("explain", "--model", "gpt-oss-120b", "--context", "32768", "--json").out)
    answer = simserve.explain_model("gpt-oss-120b", context=32_768)
    assert printed["parameters"] == answer.parameters
    assert [CardRoom(**fit) for fit in printed["fits"]] == list(answer.fits)
    assert [KvGroupAnswer(**group) for group in printed["requests"]["32768"]] == list(answer.requests[32_768])


def test_a_short_context_has_one_column_of_requests() -> None:
    lines = invoke("explain", "--model", "phi-4", "--context", "4096").out.splitlines()
    (heads,) = (line for line in lines if line.startswith("  card"))
    assert heads.split("GPU  ")[-1].split("  ") == ["requests of 4,096", "longest, tokens"]


def test_states_have_no_bytes_a_token(tmp_path: Path) -> None:
    """LFM2-1.2B: ten states of two inputs of 2,048 channels in 16 bits."""
    read(tmp_path, CONFIGS["LFM2-1.2B"])
    outcome = invoke("explain", "--model", tmp_path / "config.json")
    assert "KV cache in bf16 and states\n" in outcome.out
    (row,) = (line.split() for line in outcome.out.splitlines() if line.startswith("  state   10 layers"))
    assert row[3:6] == ["-", f"{10 * 2 * 2048 * 2 / 1e6:.2f}", "MB"]


def test_the_json_is_what_its_schema_says() -> None:
    printed = invoke("explain", "--model", "qwen3-next-80b-a3b", "--json").out
    assert TypeAdapter(ModelAnswer).validate_json(printed) == simserve.explain_model("qwen3-next-80b-a3b")
    schema = json.loads((DOCS / "explain_model.schema.json").read_text(encoding="utf-8"))
    assert list(json.loads(printed)) == list(schema["properties"])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "takes a scenario with its options, or --model with --context alone, got no scenario and --model missing"),
        (("tiny.yaml", "--model", "phi-4"), "alone, got tiny.yaml and --model phi-4; --set changes the model"),
        (("tiny.yaml", "--context", "9"), "alone, got tiny.yaml and --model missing; --set changes"),
        (("--model", "phi-4", "--seed", "0"), "or --model with --context alone"),
        (("--model", "phi-4", "--set", "gpu=l4"), "or --model with --context alone"),
        (
            ("--model", "phi-5"),
            "no such model in the catalog, or the path of a config.json, got 'phi-5'; choose from",
        ),
        (("--model", "phi-4", "--context", "0"), "--context: must be from 1 to the 16384 tokens of phi-4, got 0; leav"),
        (("--model", "phi-4", "--context", "16385"), "must be from 1 to the 16384 tokens of phi-4, got 16385; leave"),
    ],
)
def test_wrong_words_are_refused(words: tuple[str, ...], error: str) -> None:
    outcome = invoke("explain", *words)
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert error in outcome.err


def test_a_wrong_file_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA, "hidden_size": "4k"}))
    outcome = invoke("explain", "--model", file)
    rule = "hidden_size: must be a whole number, got '4k'; compare it with the published file"
    assert (outcome.exit_code, outcome.out, outcome.err) == (2, "", f"simserve: error: {file}: {rule}\n")
