"""`simserve explain`: what a scenario means before it runs."""

import json
import re
from pathlib import Path

import pytest

from simserve import load_scenario
from simserve.explain.explain import explain
from simserve.scenario.typical_steps import CONTEXT_TOKENS
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario


def test_the_parts_of_a_gpus_memory_add_up_to_the_whole(tmp_path: Path) -> None:
    (pool,) = explain(load_scenario(write_scenario(tmp_path))).pools
    parts = {name: n_bytes for name, n_bytes in pool.memory_bytes.items() if name != "total"}
    assert set(parts) == {"weights", "activations", "reserve", "kv", "unused", "kept_free"}
    assert sum(parts.values()) == pytest.approx(pool.memory_bytes["total"])
    assert all(n_bytes >= 0 for n_bytes in parts.values())


def test_the_parts_of_a_steps_time_add_up_to_the_whole(tmp_path: Path) -> None:
    (pool,) = explain(load_scenario(write_scenario(tmp_path))).pools
    assert {step.phase for step in pool.steps} == {"decode", "prefill"}
    for step in pool.steps:
        assert step.tokens_s + step.attention_s + step.sampling_s == pytest.approx(step.duration_s)
        assert min(step.tokens_s, step.attention_s, step.sampling_s) > 0


def test_one_decoding_request_takes_at_least_as_long_as_reading_the_weights(tmp_path: Path) -> None:
    (pool,) = explain(load_scenario(write_scenario(tmp_path))).pools
    weights_bytes = 8.0e9 * 2  # Llama-3.1-8B has 8.03e9 parameters of two bytes
    assert pool.steps[0].n_requests == 1
    assert pool.steps[0].duration_s > 0.9 * weights_bytes / 3.35e12  # of an H100 SXM's HBM


def test_decode_batches_that_do_not_fit_the_kv_cache_are_left_out(tmp_path: Path) -> None:
    scenario = load_scenario(write_scenario(tmp_path), overrides=["cluster.pools.0.num_gpu_blocks=700"])
    (pool,) = explain(scenario).pools
    assert pool.kv_tokens == 700 * 16
    batches = [step.n_requests for step in pool.steps if step.phase == "decode"]
    assert batches == [n for n in (1, 8) if n * CONTEXT_TOKENS <= 700 * 16]


def test_explain_tells_values_origins_memory_and_steps(tmp_path: Path) -> None:
    outcome = invoke("explain", write_scenario(tmp_path))
    assert outcome.exit_code == 0
    assert re.search(r"block_size: 16 +# engine vllm", outcome.out)
    assert re.search(r"weights +\d+\.\d\d GB", outcome.out)
    assert re.search(r"decode 32 x 1,024 tokens +\d+\.\d\d ms", outcome.out)
    assert "Cost of typical steps (calibrated)" in outcome.out
    assert outcome.err == ""


def test_explain_splits_an_exchange_between_nodes(tmp_path: Path) -> None:
    link = "{tensor: 1, data: 16, expert: 16, node_link: {bytes_per_s: 25e9, latency_s: 5e-6}}"
    sets = ("--set", "model=qwen3-30b-a3b", "--set", f"cluster.pools.0.parallel={link}")
    outcome = invoke("explain", write_scenario(tmp_path), *sets)
    assert "Experts over 2 nodes (25 GB/s a GPU, 5 us), 8 on each GPU; a token goes" in outcome.out
    assert "to 1.00 other nodes, and there on to its experts' 6.60 GPUs (normal kernels, above 256 tok" in outcome.out
    assert "to 4.00 experts on other nodes and 3.50 in its own (low-latency kernels, up to 256 tok" in outcome.out
    assert re.search(r"sampling +exchange\n", outcome.out)
    gather = invoke("explain", write_scenario(tmp_path), *sets, "--set", "cluster.pools.0.parallel.exchange=gather")
    assert "Experts over 2 nodes (25 GB/s a GPU, 5 us), 8 on each GPU; every GPU gets all tokens" in gather.out
    near = "cluster.pools.0.parallel={tensor: 1, data: 4, expert: 4, exchange: all_to_all}"
    inside = invoke("explain", write_scenario(tmp_path), *sets[:2], "--set", near).out
    assert "Experts in one node (450 GB/s a GPU, 5 us), 32 on each GPU; a token goes\n    to its experts' " in inside
    assert re.search(r"to \d\.\d\d experts \(low-latency kernels, up to 256 tokens a GPU\)", inside)
    (pool,) = json.loads(invoke("explain", write_scenario(tmp_path), *sets, "--json").out)["pools"]
    assert pool["exchange"]["n_nodes"] == 2
    assert all(0 < step["exchange_s"] < step["tokens_s"] for step in pool["steps"])


def test_explain_says_where_all_reduces_between_nodes_are_from(tmp_path: Path) -> None:
    wide = ("--set", "cluster.pools.0.parallel.tensor=16", "--set", "model=llama-3.1-70b")
    assert (
        "  Times of all-reduces over 2 nodes are medians of published nccl-tests of"
        in invoke("explain", write_scenario(tmp_path), *wide).out
    )
    assert "nccl-tests" not in invoke("explain", write_scenario(tmp_path)).out


def test_typical_steps_of_ranks_that_speculate_include_the_experts_of_all(tmp_path: Path) -> None:
    sets = ["model=qwen3-next-80b-a3b", "gpu=b200-sxm", "cluster.pools.0.parallel={data: 16, expert: 16}"]
    sets[-1] = sets[-1].replace("}", ", exchange: gather}")  # twice as many tokens use the same kernels
    how = "cluster.pools.0.speculation={kind: mtp, tokens: 1, acceptance: 0.8}"
    (plain,), (mtp,) = (
        explain(load_scenario(write_scenario(tmp_path), overrides=each)).pools for each in (sets, [*sets, how])
    )
    for one, two in zip(plain.steps, mtp.steps, strict=True):
        assert two.exchange_s >= one.exchange_s > 0
        assert two.duration_s - two.drafting_s > 0.999 * one.duration_s
        parts_s = two.tokens_s + two.attention_s + two.sampling_s + two.drafting_s
        assert parts_s == pytest.approx(two.duration_s)


def test_explain_follows_set_and_seed(tmp_path: Path) -> None:
    outcome = invoke("explain", write_scenario(tmp_path), "--set", "cluster.pools.0.replicas=3", "--seed", 7)
    assert "3 x llama-3.1-8b on 1 x h100-sxm as vllm 0.19\n" in outcome.out
    assert re.search(r"^seed: 7\b", outcome.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (
            "seed=7",
            "  Host times: fitted to servers of vllm 0.12, with known changes up to 0.19\n"
            "  Kernels: timed on h100-sxm under vllm 0.24.0\n"
            "  Steps: planned one ahead; the host's work hides behind kernels\n",
        ),
        ("cluster.pools.0.parallel.pipeline=2", "  Steps: not planned ahead; the GPU waits for host times\n"),
        (
            "cluster.pools.0.speculation={kind: draft_model, model: llama-3.2-1b, tokens: 2, acceptance: 0.7}",
            "  Steps: not planned ahead; the GPU waits for host times\n",
        ),
        ("engine={name: vllm, version: '0.12'}", "  Host times: fitted to servers of vllm 0.12\n"),
        ("engine=trtllm", "  Steps: planned one ahead; the host's work hides behind kernels\n"),
        ("engine={name: trtllm, version: '1.0'}", "  Steps: planned one ahead; the GPU waits for host times\n"),
        (
            "cluster.pools.0.calibration=none",
            "  Host times: assumed, with known changes up to 0.19\n  Kernels: a plain roofline\n",
        ),
    ],
)
def test_explain_says_where_host_times_and_kernels_come_from_and_whether_steps_are_planned_ahead(
    change: str, lines: str, tmp_path: Path
) -> None:
    assert lines in invoke("explain", write_scenario(tmp_path), "--set", change).out


def test_explain_as_json_is_machine_readable_and_alone(tmp_path: Path) -> None:
    answer = json.loads(invoke("explain", write_scenario(tmp_path), "--json").out)
    assert answer["scenario"]["name"] == "tiny"
    assert answer["pools"][0]["n_blocks"] > 0
    assert answer["origins"]


def test_a_scenario_that_does_not_fit_is_explained_as_an_error(tmp_path: Path) -> None:
    outcome = invoke("explain", write_scenario(tmp_path, model="llama-3.1-70b"))
    assert outcome.exit_code == 2
    assert re.search(r"simserve: error: .*\bGB\b", outcome.err)


def test_explain_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    invoke("explain", write_scenario(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.yaml"]


def test_explain_tells_what_host_memory_holds(tmp_path: Path) -> None:
    # 2 MiB a block of 16 tokens: 10 GB hold 4,768 of them, 1 TB 476,837; a token is 128 KiB at 64 GB/s.
    tier = "cluster.pools.0.host_tier={bytes: 10e9, disk: {bytes: 1e12, bytes_per_s: 5e9}}"
    outcome = invoke("explain", write_scenario(tmp_path), "--set", tier)
    assert "host: 76,288 tokens, 2.05 us each from or to the GPU, and 7,629,392 on disk" in outcome.out
    path = write_scenario(tmp_path)
    pool = [f"cluster.pools.0.{each}" for each in ("host_tier.scope=pool", "parallel.tensor=2")]
    outcome = invoke("explain", path, *(word for each in (tier, *pool) for word in ("--set", each)))
    assert "host: 76,288 tokens for all replicas, 1.02 us each from or to the GPU, and 7,629,392 on disk" in outcome.out


def test_where_tokens_are_proposed_drafts_are_a_part_of_the_time(tmp_path: Path) -> None:
    how = "cluster.pools.0.speculation={kind: eagle, tokens: 3, acceptance: 0.5}"
    path = write_scenario(tmp_path)
    (pool,) = explain(load_scenario(path, overrides=[how])).pools
    assert pool.tokens_per_step == 1 + 0.5 + 0.25 + 0.125
    for step in pool.steps:
        parts_s = step.tokens_s + step.attention_s + step.sampling_s + step.drafting_s
        assert parts_s == pytest.approx(step.duration_s)
        assert min(step.tokens_s, step.attention_s, step.sampling_s, step.drafting_s) > 0
    outcome = invoke("explain", path, "--set", how)
    assert re.search(r"1\.88 expected tokens per step.*\n.*drafting", outcome.out)


def test_a_step_that_waits_for_the_host_says_so(tmp_path: Path) -> None:
    how = "engine={name: vllm, version: '0.15', step_host_s: 7.0e-3}"
    path = write_scenario(tmp_path)
    (pool,) = explain(load_scenario(path, overrides=[how])).pools
    for step in pool.steps:
        parts_s = step.tokens_s + step.attention_s + step.sampling_s + step.host_wait_s
        assert parts_s == pytest.approx(step.duration_s)
        assert step.duration_s >= 7.0e-3
    assert pool.steps[0].host_wait_s > 0 == pool.steps[-1].host_wait_s
    assert "for the host" in invoke("explain", path, "--set", how).out
    assert "for the host" not in invoke("explain", path).out


def test_explain_tells_what_a_request_holds_by_kind_of_layer(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, model="gpt-oss-120b", weight_dtype="mxfp4", gpu="h200-sxm")
    (pool,) = explain(load_scenario(path)).pools
    budget = 8192  # tokens of a step on this card
    assert [(group.kind, group.n_layers, group.window) for group in pool.kv_groups] == [
        ("windowed", 18, 128),
        ("full", 18, None),
    ]
    assert [group.longest_bytes for group in pool.kv_groups] == [
        (-(-(127 + budget) // 16) + 1) * 16 * 18 * 2048,
        131_072 * 18 * 2048,
    ]
    outcome = invoke("explain", path)
    assert re.search(r"windowed 128 +18 layers +0\.31 GB\n +full +18 layers +4\.83 GB", outcome.out)
    assert "held by kind of layer" not in invoke("explain", write_scenario(tmp_path)).out


def test_explain_tells_which_kernels_stand_for_those_of_experts(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, model="gpt-oss-120b", weight_dtype="mxfp4", gpu="b200-sxm")
    line = "  Experts: mxfp4 by flashinfer_trtllm_afp8, timed as mxfp4_mxfp8\n"
    assert line in invoke("explain", path, "--set", "engine=trtllm").out
    assert line in invoke("explain", path, "--set", "engine.moe_backend=flashinfer_trtllm_afp8").out
    assert "  Experts: " not in invoke("explain", path).out
    assert "  Experts: " not in invoke("explain", path, "--set", "engine=trtllm", "--set", "gpu=h200-sxm").out


def test_explain_shows_the_block_that_a_state_fills(tmp_path: Path) -> None:
    outcome = invoke("explain", write_scenario(tmp_path, model="qwen3-next-80b-a3b", gpu="b200-sxm"))
    assert "block: 544 tokens, as a state fills one; prefixes hit at its multiples" in outcome.out
    assert "block: " not in invoke("explain", write_scenario(tmp_path)).out


def test_it_refuses_a_trace_that_a_run_would_refuse(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,-3,5\n")
    scenario = write_scenario(tmp_path, workload={"trace": {"path": "trace.csv"}})
    explained, ran = invoke("explain", scenario), invoke("run", scenario, "--out", tmp_path / "out")
    assert (explained.exit_code, explained.out, explained.err) == (2, "", ran.err)
    assert "trace.csv: line 3: prompt_tokens must be at least 1, got -3" in explained.err


def test_explain_says_whether_a_long_run_uses_several_processes(tmp_path: Path) -> None:
    outcome = invoke("explain", write_scenario(tmp_path))
    assert "Processes: one, as there is only one replica" in outcome.out
    outcome = invoke("explain", write_scenario(tmp_path), "--set", "cluster.pools.0.replicas=2")
    assert "Processes: a long run uses several, as replicas are independent" in outcome.out
