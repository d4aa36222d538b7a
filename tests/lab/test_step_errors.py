"""Lines of engines about their steps: read as they are written, and a server gives its constants back by them."""

import json
from pathlib import Path

import numpy as np
import pytest

from simserve import load_scenario, simulate
from simserve.lab.fitted_log import LogFit
from simserve.lab.log_fit import fit_files
from simserve.lab.log_groups import ReplayedSteps
from simserve.lab.server import Server
from simserve.metrics.results import Results
from simserve.workload.readers.logs.steps import is_steps, read_steps
from tests.cli.invoke import invoke

SCENARIO = """schema: simserve/1
name: mine
model: llama-3.1-8b
gpu: h100-sxm
engine: {{name: {engine}}}
workload:
  client: {{kind: closed_loop, concurrency: {clients}}}
  lengths: {{kind: fixed, prompt_tokens: {prompt}, output_tokens: 512}}
  n_requests: {n}
"""


def server(folder: Path, engine: str, clients: int = 16, prompt: int = 1024, n: int = 400) -> Path:
    path = folder / "mine.yaml"
    path.write_text(SCENARIO.format(engine=engine, clients=clients, prompt=prompt, n=n))
    return path


def ran(path: Path, **constants: float) -> Results:
    return simulate(load_scenario(path, overrides=[f"engine.{name}={value}" for name, value in constants.items()]))


def sglang_lines(run: Results) -> list[str]:
    """Return a line each 40 steps of decoding, and one for each step with prompts."""
    lines: list[str] = []
    held: list[tuple[float, int, int]] = []
    for row in run.steps.to_dict("records"):
        if row["prefill_tokens"]:
            held = []
            lines.append(f"Prefill batch. #new-seq: 1, #new-token: {row['prefill_tokens']}, #cached-token: 0, ")
            continue
        n, step_s = row["decode_requests"], (row["end_s"] - row["start_s"]) / row["n_steps"]
        held += [(step_s, n, row["kv_tokens"] + place * n) for place in range(row["n_steps"])]
        while len(held) >= 40:
            part, held = held[:40], held[40:]
            rate = sum(n for _, n, _ in part) / sum(step_s for step_s, _, _ in part)
            lines.append(
                f"[2026-11-28 10:00:00 TP0] Decode batch, #running-req: {part[-1][1]}, #token: {part[-1][2]}, token "
                f"usage: 0.21, cuda graph: True, gen throughput (token/s): {rate:.2f}, #queue-req: 0, "
            )
    return lines


def vllm_lines(run: Results) -> list[str]:
    return [
        f"INFO 11-28 10:00:00 [loggers.py:248] Engine 000: Avg prompt throughput: {row['prefill_tokens_per_s']:.1f} "
        f"tokens/s, Avg generation throughput: {row['output_tokens_per_s']:.1f} tokens/s, Running: "
        f"{row['running']:.0f} reqs, Waiting: 0 reqs, GPU KV cache usage: {100 * row['kv_frac']:.1f}%, Prefix "
        "cache hit rate: 0.0%"
        for row in run.timeseries.to_dict("records")
    ]


def fitted(folder: Path, lines: list[str], engine: str) -> LogFit:
    (folder / "engine.log").write_text("\n".join(lines))
    return fit_files([folder / "engine.log"], Server(server(folder, engine)))


def test_decode_lines_of_sglang_give_the_constants_back(tmp_path: Path) -> None:
    lines = []
    for clients in (2, 8, 32):
        lines += sglang_lines(ran(server(tmp_path, "sglang", clients, n=4 * clients), step_host_s=0.004))
    result = fitted(tmp_path, lines, "sglang")
    assert list(result.fitted) == ["step_host_s"]
    assert result.fitted["step_host_s"].value == pytest.approx(0.004, rel=0.02)
    assert (result.unit, result.parts) == ("lines", "the lighter and the heavier half of the load")
    assert result.errors["tpot_s"].fitted_frac < 0.01
    assert "with a prompt since the line before" in result.left_out


def test_lines_of_vllm_each_ten_seconds_give_the_constants_back(tmp_path: Path) -> None:
    lines = []
    for clients in (4, 16, 64):
        lines += vllm_lines(ran(server(tmp_path, "vllm", clients, n=60 * clients), exposed_step_s=0.002))
    result = fitted(tmp_path, lines, "vllm")
    assert "exposed_step_s" in result.fitted
    assert result.errors["tpot_s"].fitted_frac < 0.02 < result.errors["tpot_s"].shipped_frac


def test_scrapes_tell_what_the_lines_tell(tmp_path: Path) -> None:
    run = ran(server(tmp_path, "vllm", 16, n=600))
    table = run.timeseries.iloc[1:-1]
    width_s = table["end_s"] - table["start_s"]
    columns = {
        "num_requests_running": table["running"],
        "kv_cache_usage_perc": table["kv_frac"],
        "generation_tokens_total": (width_s * table["output_tokens_per_s"]).cumsum(),
        "prompt_tokens_total": (width_s * table["prefill_tokens_per_s"]).cumsum(),
    }
    at_s = table["end_s"].to_list()
    series = [
        {"metric": {"__name__": f"vllm:{name}"}, "values": [[*pair] for pair in zip(at_s, map(str, each), strict=True)]}
        for name, each in columns.items()
    ]
    path = tmp_path / "scrapes.json"
    path.write_text(json.dumps({"data": {"resultType": "matrix", "result": series}}))
    (tmp_path / "engine.log").write_text("\n".join(vllm_lines(run)))
    scraped, lines = read_steps(path), read_steps(tmp_path / "engine.log")
    assert is_steps(path)
    assert scraped.measured["tpot_s"].mean() == pytest.approx(lines.measured["tpot_s"].mean(), rel=0.02)
    assert scraped.kv_frac.mean() == pytest.approx(lines.kv_frac.mean(), rel=0.05)
    del series[1]
    path.write_text(json.dumps({"data": {"resultType": "matrix", "result": series}}))
    outcome = invoke("calibrate", "--logs", path, "--scenario", server(tmp_path, "vllm"))
    assert outcome.exit_code == 2
    assert "must have kv_cache_usage_perc of each server; add them to the query" in " ".join(outcome.err.split())


def test_lines_that_tell_no_steps_are_refused_with_the_reason(tmp_path: Path) -> None:
    path, scenario = tmp_path / "engine.log", server(tmp_path, "vllm")
    lines = vllm_lines(ran(scenario))
    path.write_text(lines[1].replace("Running: 16", "Running: 0"))
    for command, text in (
        (("calibrate", "--logs", path), "must have lines of steps in which requests run, without a prompt since"),
        (("validate", path), "must be a log of requests, got an engine's lines, which tell its steps; fit them with"),
    ):
        outcome = invoke(*command, "--scenario", scenario)
        assert outcome.exit_code == 2
        assert text in " ".join(outcome.err.split())
    path.write_text("\n".join([lines[1]] * 9))
    outcome = invoke("calibrate", "--logs", path, "--scenario", scenario)
    assert "a log needs at least 40 lines of steady steps, got" in " ".join(outcome.err.split())


@pytest.mark.parametrize("prompt", [256, 1024, 3000])
def test_prompts_lengthen_steps_as_they_do_in_a_run(prompt: int, tmp_path: Path) -> None:
    """Predicted steps of the lines of a run are those of the run, whatever the length of its prompts."""
    path = server(tmp_path, "vllm", 32, prompt=prompt, n=600)
    (tmp_path / "engine.log").write_text("\n".join(vllm_lines(ran(path))[2:-2]))
    replay = ReplayedSteps(read_steps(tmp_path / "engine.log"), Server(path).scenario.setups[-1])
    ratio = replay.predicted["tpot_s"] / replay.log.measured["tpot_s"]
    assert np.median(ratio) == pytest.approx(1.0, abs=0.03)


def test_steps_that_speculate_give_as_many_tokens_as_the_scenario_says(tmp_path: Path) -> None:
    path = server(tmp_path, "vllm", 16, n=400)
    text = "cluster: {pools: [{speculation: {kind: ngram, tokens: 2, acceptance: 0.6}}]}\n"
    path.write_text(path.read_text() + text)
    (tmp_path / "engine.log").write_text("\n".join(vllm_lines(ran(path))[2:-2]))
    replay = ReplayedSteps(read_steps(tmp_path / "engine.log"), Server(path).scenario.setups[-1])
    ratio = replay.predicted["tpot_s"] / replay.log.measured["tpot_s"]
    assert np.median(ratio) == pytest.approx(1.0, abs=0.04)
