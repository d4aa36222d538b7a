"""Logs replayed: what is said of the errors, worked by hand, and a simulated run that is its own log."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from simserve import load_scenario, simulate
from simserve.lab.log_errors import ReplayedLog, quartiles, replay_log, server_of
from simserve.lab.validated_log import log_error_facts
from simserve.metrics.results import Results
from simserve.scenario import Scenario
from simserve.tables.columns import Categorical
from simserve.workload.load import Load, offered_load
from simserve.workload.readers.base import items
from simserve.workload.readers.logs import read_log
from simserve.workload.readers.logs.base import Log
from simserve.workload.trace import Prefixes, Trace

LOGS = Path(__file__).resolve().parents[3] / "shared" / "data" / "logs"

SERVER = "schema: simserve/1\nname: server\nmodel: llama-3.1-8b\ngpu: h100-sxm\nengine: vllm\n"
LOAD = """
seed: 4
measure: {warmup_requests: 10}
workload:
  arrivals: {kind: gamma, rate_per_s: 12, burstiness: 0.4}
  lengths: {kind: uniform, prompt_tokens: [10, 3000], output_tokens: [1, 120]}
  n_requests: 200
"""

LENGTHS = {"kind": "fixed", "prompt_tokens": 1, "output_tokens": 1}


def replayed(predicted: list[float], fates: list[int] | None = None, **changes: Any) -> ReplayedLog:
    """Four requests a second apart: TTFT 1 s and E2E 2.5 s each as measured, the TTFT as given as predicted."""
    n = 4
    tokens = np.array([10, 20, 30, 40])
    outputs = np.full(n, 11)
    log: dict[str, Any] = {
        "place": items(Path("log.csv"), n, "row"),
        "trace": Trace(np.arange(n, dtype=np.float64), tokens, outputs),
        "measured": {"ttft_s": np.ones(n), "e2e_s": np.full(n, 2.5)},
    }
    ttft_s = np.array(predicted)
    status = Categorical(np.array(fates or [0] * n, np.int32), ("finished", "rejected"))
    requests = {
        "arrival_s": np.arange(n) * 1.0,
        "output_tokens": outputs,
        "status": status,
        "ttft_s": ttft_s,
        "tpot_s": np.full(n, 0.1),
        "e2e_s": ttft_s + 1,
        "finish_s": np.where(status.codes == 0, np.arange(n) + ttft_s + 1, np.nan),
    }
    results = SimpleNamespace(columns={"requests": requests})
    return ReplayedLog(Log(**(log | changes)), cast(Scenario, None), cast(Results, results))


def test_errors_are_those_worked_by_hand() -> None:
    result = replayed([1.1, 0.9, 1.4, 1.0]).errors("ttft_s")
    assert result is not None
    assert result.n == 4
    assert [result.mape_frac, result.bias_frac] == pytest.approx([0.15, 0.1])
    assert result.median_frac == pytest.approx(0.1)
    assert result.p90_frac == pytest.approx(0.31)  # 0.1 + 0.7 (0.4 - 0.1)


def test_distributions_are_those_of_both_sides() -> None:
    result = replayed([1.1, 0.9, 1.4, 1.0]).distribution("ttft_s")
    assert [result["mean"].measured, result["mean"].predicted] == pytest.approx([1.0, 1.1])
    assert result["p50"].predicted == pytest.approx(1.05)
    assert result["p50"].error_frac == pytest.approx(0.05)


def test_in_flight_counts_what_was_sent_and_not_answered() -> None:
    result = replayed([1.0, 1.0, 1.0, 1.0])
    assert result.in_flight is not None
    assert result.in_flight.tolist() == [0, 1, 2, 2]  # each stays for 2.5 s
    assert [(group.lowest, group.highest, group.errors.n) for group in result.groups("ttft_s", result.in_flight)] == [
        (0, 0, 1),
        (1, 1, 1),
        (2, 2, 2),
    ]


def test_totals_run_from_the_first_request_to_the_last_answer() -> None:
    result = replayed([1.0, 1.0, 1.0, 2.0])
    assert (result.makespan_s.measured, result.makespan_s.predicted) == (5.5, 6.0)
    speed = result.output_tokens_per_s
    assert [speed.measured, speed.predicted] == pytest.approx([44 / 5.5, 44 / 6])


def test_the_worst_are_the_furthest_off_either_way() -> None:
    result = replayed([1.1, 0.5, 1.8, 1.0])
    assert result.worst("ttft_s", 2).tolist() == [1, 2]  # half is further off than 1.8 times


def test_a_refused_request_is_left_out_of_both_sides() -> None:
    result = replayed([1.5, 9.0, 1.0, 1.0], [0, 1, 0, 0])
    errors = result.errors("ttft_s")
    assert errors is not None
    assert errors.n == 3
    assert errors.bias_frac == pytest.approx(0.5 / 3)


def test_requests_whose_arrivals_were_drawn_are_not_paired() -> None:
    result = replayed([1.0, 1.0, 1.0, 1.0], arrivals="drawn", duration_s=6.0)
    assert result.errors("ttft_s") is None
    assert all(result.groups("ttft_s", feature) == [] for feature in result.features.values())
    assert len(result.worst("ttft_s", 5)) == 0
    assert result.makespan_s.measured == 6.0  # the benchmark's own
    assert result.distribution("ttft_s")["mean"].error_frac == 0.0


def test_quartiles_keep_equal_values_together() -> None:
    parts = quartiles(np.array([1.0, 2, 3, 4, 5, 6, 7, 8]))
    assert [np.flatnonzero(part).tolist() for part in parts] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [part.tolist() for part in quartiles(np.array([2.0, 2.0, 2.0]))] == [[True] * 3]


def write(folder: Path, text: str) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("engine", ["vllm", "trtllm", "{name: sglang, receive_s: 0.01}"])
def test_a_simulated_run_validated_against_itself_has_no_error(engine: str, tmp_path: Path) -> None:
    path = write(tmp_path, SERVER.replace("vllm", engine) + LOAD)
    simulate(load_scenario(path)).write(tmp_path / "run")
    facts = log_error_facts(replay_log(read_log(tmp_path / "run" / "requests.parquet"), server_of(path)))
    assert facts["log"]["n_compared"] == 200
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert facts["errors"][name]["overall"]["mape_frac"] == pytest.approx(0, abs=1e-9)
        levels = facts["distributions"][name]
        assert all(levels[level]["error_frac"] == pytest.approx(0, abs=1e-9) for level in ("mean", "p50", "p99"))
    assert facts["output_tokens_per_s"]["error_frac"] == pytest.approx(0, abs=1e-9)


def test_requests_that_did_not_finish_are_sent_but_not_compared(tmp_path: Path) -> None:
    pool = "cluster: {pools: [{max_model_len: 2000}]}\n"
    path = write(tmp_path, SERVER + pool + LOAD)
    results = simulate(load_scenario(path))
    results.write(tmp_path / "run")
    n_rejected = results.columns["requests"]["status"].is_("rejected").sum()
    log = read_log(tmp_path / "run" / "requests.parquet")
    assert (len(log), log.n_unfinished) == (200, n_rejected)
    assert n_rejected > 20
    result = log_error_facts(replay_log(log, server_of(path)))
    assert result["log"]["n_compared"] == 200 - n_rejected
    assert result["errors"]["ttft_s"]["overall"]["mape_frac"] == pytest.approx(0, abs=1e-9)
    assert f"{n_rejected} requests of the log did not finish: replayed, but not compared" in result["warnings"]


def test_a_request_that_the_server_served_and_the_simulator_refuses_is_told(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("arrival_s,isl,osl,ttft_s\n0,100,5,0.1\n1,5000,5,0.4\n2,3990,50,0.4\n")
    server = server_of(write(tmp_path, SERVER + "cluster: {pools: [{max_model_len: 4000}]}\n"))
    result = log_error_facts(replay_log(read_log(log), server))
    assert result["warnings"][0] == (
        "the server served 1 request (line 3) that the simulator rejects (prompt leaves no room for a token within "
        "max_model_len)"
    )
    assert result["warnings"][1] == "the simulator cuts 1 request (line 4) short, at max_tokens or max_model_len"
    assert (result["log"]["n_compared"], result["distributions"]["ttft_s"]["n"]) == (2, 2)
    assert result["requests"]["predicted_status"] == ["finished", "rejected", "finished"]


SHARED = """
seed: 4
workload:
  arrivals: {kind: poisson, rate_per_s: 6}
  lengths: {kind: uniform, prompt_tokens: [1000, 4000], output_tokens: [2, 40]}
  n_requests: 500
"""


def logged(folder: Path, engine: str = "vllm", prefixes: bool = True) -> Path:
    """Serve prompts that are the same up to their length, and log them; return the log."""
    path = write(folder, SERVER.replace("vllm", engine) + SHARED)
    scenario = load_scenario(path)
    trace = offered_load(scenario.workload, scenario.seed, folder).trace
    n_ids = trace.prompt_tokens // 16
    ids = np.concatenate([np.arange(n) for n in n_ids])
    shared = Prefixes.from_ids(16, ids, np.concatenate([[0], np.cumsum(n_ids)]))
    served = simulate(scenario, load=Load(replace(trace, prefixes=shared))).columns["requests"]
    rows = zip(
        served["arrival_s"], trace.prompt_tokens, trace.output_tokens, served["ttft_s"], served["e2e_s"], strict=True
    )
    head = "arrival_s,prompt_tokens,output_tokens,ttft_s,e2e_s"
    lines = [",".join(f"{float(each)!r}" for each in row) for row in rows]
    if prefixes:
        head += ",hash_ids,hash_block_tokens"
        lines = [f"{line},{' '.join(map(str, range(n)))},16" for line, n in zip(lines, n_ids, strict=True)]
    log = folder / "log.csv"
    log.write_text("\n".join([head, *reversed(lines)]) + "\n")  # the last first: the log is sorted with its ids
    return log


def test_a_log_with_hash_ids_shares_prefixes_as_the_server_did(tmp_path: Path) -> None:
    log = read_log(logged(tmp_path))
    result = log_error_facts(replay_log(log, server_of(tmp_path / "scenario.yaml")))
    assert result["errors"]["ttft_s"]["overall"]["mape_frac"] == pytest.approx(0, abs=1e-9)
    assert result["errors"]["e2e_s"]["overall"]["mape_frac"] == pytest.approx(0, abs=1e-9)
    assert "requests share prefixes as the log says" in result["assumed"]
    assert not any("prefix cache" in text for text in result["warnings"])


@pytest.mark.parametrize("respond_s", [0.0, 0.3])
def test_ttft_that_does_not_grow_with_the_prompt_shows_a_prefix_cache(respond_s: float, tmp_path: Path) -> None:
    engine = f"{{name: vllm, respond_s: {respond_s}, receive_s: 0.0, receive_token_s: 0.0}}"
    log = read_log(logged(tmp_path, engine, prefixes=False))
    result = log_error_facts(replay_log(log, server_of(tmp_path / "scenario.yaml")))
    [text] = [text for text in result["warnings"] if "prefix cache" in text]
    assert text.startswith("a prefix cache held about 100% of the prompt tokens (95% CI 9")


def test_single_answers_that_come_too_early_show_a_prefix_cache(tmp_path: Path) -> None:
    """One in twenty prompts was cached: too few to see in the growth of TTFT."""
    path = write(tmp_path, SERVER + SHARED)
    rows = simulate(load_scenario(path)).requests
    rows.loc[::20, ["ttft_s", "tpot_s", "e2e_s"]] = [0.002, 0.01, 0.5]
    rows[["arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s"]].to_csv(tmp_path / "log.csv", index=False)
    result = log_error_facts(replay_log(read_log(tmp_path / "log.csv"), server_of(path)))
    [text] = [text for text in result["warnings"] if "prefix cache" in text]
    assert "before a prompt of that length can be computed (down to " in text


@pytest.mark.parametrize("rate_per_s", [6, 60])  # the second saturates the server: its slope is noise
def test_ttft_of_prompts_that_were_computed_shows_no_prefix_cache(rate_per_s: int, tmp_path: Path) -> None:
    path = write(tmp_path, SERVER + SHARED.replace("rate_per_s: 6", f"rate_per_s: {rate_per_s}"))
    simulate(load_scenario(path)).write(tmp_path / "run")
    result = log_error_facts(replay_log(read_log(tmp_path / "run" / "requests.parquet"), server_of(path)))
    assert not any("prefix cache" in text for text in result["warnings"])


def test_a_closed_loop_sends_the_next_request_when_one_is_answered() -> None:
    place, n = items(Path("log"), 3, "request"), 3
    trace = Trace(np.zeros(n), np.full(n, 100), np.full(n, 10))
    client = {"client": {"concurrency": 9}, "lengths": LENGTHS, "duration_s": 0.001}
    scenario = Scenario.from_dict(
        {"schema": "simserve/1", "model": "llama-3.1-8b", "gpu": "h100-sxm", "workload": client}
    )
    log = Log(place, trace, {"ttft_s": np.ones(n)}, arrivals="closed_loop", concurrency=1)
    requests = replay_log(log, scenario).results.columns["requests"]
    assert len(requests["arrival_s"]) == 3  # neither the scenario's clients nor its end count
    assert requests["arrival_s"][1:].tolist() == pytest.approx(requests["finish_s"][:-1].tolist())


def test_a_server_needs_no_workload(tmp_path: Path) -> None:
    assert server_of(write(tmp_path, SERVER)).name == "server"
    assert server_of(write(tmp_path, SERVER + "workload: {trace: {path: nowhere.csv}}\n")).model == "llama-3.1-8b"


@pytest.mark.skipif(not LOGS.is_dir(), reason="logs of real servers are not shipped")
def test_a_log_of_vllm_0_15_meets_the_bars(tmp_path: Path) -> None:
    pool = (
        "{parallel: {tensor: 2}, num_gpu_blocks: 26602, max_model_len: 4096, "
        "scheduler: {kind: chunked, max_num_batched_tokens: 2048, max_num_seqs: 128}}"
    )
    server = f"model: {LOGS}/codellama-34b.json\ngpu: h100-sxm\nengine: {{name: vllm, version: '0.15'}}\n"
    path = write(tmp_path, f"schema: simserve/1\n{server}cluster: {{pools: [{pool}]}}\n")
    log = read_log(LOGS / "h100-vllm-0.15.1-codellama-34b-tp2-codegen.csv.gz")
    levels = log_error_facts(replay_log(log, server_of(path)))["distributions"]
    assert abs(levels["e2e_s"]["mean"]["error_frac"]) < 0.04
    assert abs(levels["e2e_s"]["p99"]["error_frac"]) < 0.08
    assert abs(levels["ttft_s"]["mean"]["error_frac"]) < 0.08
    assert abs(levels["tpot_s"]["mean"]["error_frac"]) < 0.04
