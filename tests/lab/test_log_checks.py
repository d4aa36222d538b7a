"""Checks before a fit: whose log it is, what its arrivals and its load can tell, and what a cache has held."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simserve.errors import CalibrationError, TraceError
from simserve.lab.fitted_log import LogFit
from simserve.lab.log_checks import check_model, is_seen
from simserve.lab.log_fit import OF_PROMPTS, fit_files
from simserve.lab.server import Server
from simserve.study.intervals import Estimate
from simserve.workload.readers.logs import read_log
from tests.cli.invoke import Outcome, invoke
from tests.lab.test_log_fit import logged, written


def bench(folder: Path, log: pd.DataFrame, **labels: Any) -> Path:
    """Return a log as the result of `vllm bench serve --save-detailed`."""
    log = log.sort_values("arrival_s")
    gaps = [
        [decode_s / (n - 1)] * (n - 1) if n > 1 else []
        for decode_s, n in zip(log["e2e_s"] - log["ttft_s"], log["output_tokens"], strict=True)
    ]
    result = {
        "model_id": "meta-llama/Llama-3.1-8B-Instruct",
        "request_rate": 12,
        "burstiness": 1.0,
        "completed": len(log),
        "total_input_tokens": int(log["prompt_tokens"].sum()),
        "total_output_tokens": int(log["output_tokens"].sum()),
        "request_throughput": 11.5,
        "input_lens": log["prompt_tokens"].tolist(),
        "output_lens": log["output_tokens"].tolist(),
        "ttfts": log["ttft_s"].tolist(),
        "itls": gaps,
        "start_times": log["arrival_s"].tolist(),
    } | labels
    path = folder / "bench.json"
    path.write_text(json.dumps({key: value for key, value in result.items() if value is not None}))
    return path


def fit(folder: Path, path: Path) -> LogFit:
    return fit_files([path], Server(folder / "mine.yaml"))


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("Qwen/Qwen3-32B", "must be a log of the scenario's model, llama-3.1-8b in bf16, got one of Qwen/Qwen3-32B; "),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "got one of RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8, in fp8; "),
    ],
)
def test_a_log_of_another_model_is_refused(model: str, text: str, tmp_path: Path) -> None:
    path = bench(tmp_path, logged(written(tmp_path, n=300)), model_id=model)
    with pytest.raises(CalibrationError, match=r"bench.json: must be a log of the scenario's model") as caught:
        fit(tmp_path, path)
    assert text in str(caught.value)
    outcome = invoke("validate", path, "--scenario", tmp_path / "mine.yaml")
    assert (outcome.exit_code, outcome.err) == (2, f"simserve: error: {caught.value}\n")


@pytest.mark.parametrize(
    ("column", "names", "text"),
    [
        (
            "pod",
            ["a", "b", "c"],
            "must be of the scenario's 1 replica, got 3 pods (a, b, c); give the requests of one pod",
        ),
        ("engine_version", ["0.12", "0.14"], "must be of one version of the engine, got 0.12 and 0.14; give a log of"),
    ],
)
def test_a_log_of_several_servers_is_refused(column: str, names: list[str], text: str, tmp_path: Path) -> None:
    """Pods of an autoscaled set, or servers of two versions, in one file."""
    log = logged(written(tmp_path, n=300))
    log[column] = np.resize(names, len(log))
    log.to_csv(tmp_path / "log.csv", index=False)
    for command in (("validate", tmp_path / "log.csv"), ("calibrate", "--logs", tmp_path / "log.csv")):
        outcome = invoke(*command, "--scenario", tmp_path / "mine.yaml")
        assert outcome.exit_code == 2
        assert text in " ".join(outcome.err.split())
    log.assign(**{column: names[0]}).to_csv(tmp_path / "log.csv", index=False)
    assert invoke("validate", tmp_path / "log.csv", "--scenario", tmp_path / "mine.yaml").exit_code == 0


def test_clocks_that_disagree_are_refused(tmp_path: Path) -> None:
    log = logged(written(tmp_path, n=300))
    log["first_token_s"] = log["arrival_s"] + log.pop("ttft_s") - 0.5
    log.to_csv(tmp_path / "log.csv", index=False)
    with pytest.raises(
        TraceError, match=r"ttft_s must not be negative \(do the clocks of its instants agree\?\), got -"
    ):
        read_log(tmp_path / "log.csv")


def test_a_served_name_that_nobody_knows_is_told(tmp_path: Path) -> None:
    log = read_log(bench(tmp_path, logged(written(tmp_path, n=300)), model_id="chat"))
    text = check_model(log.place.path, log.model, Server(tmp_path / "mine.yaml").scenario)
    assert (
        text == f"{tmp_path}/bench.json names the model chat, which the catalog does not know; taken for llama-3.1-8b"
    )


def test_drawn_arrivals_fit_no_constant_of_prompts_unless_three_draws_agree(tmp_path: Path) -> None:
    path = bench(tmp_path, logged(written(tmp_path, n=800), receive_s=0.004), start_times=None)
    result = fit(tmp_path, path)
    assert not set(OF_PROMPTS) & result.fitted.keys()
    assert result.as_shipped["receive_s"] == "arrivals are drawn, and 3 draws give different values"


def test_drawn_arrivals_fit_host_time_of_steps(tmp_path: Path) -> None:
    path = bench(tmp_path, logged(written(tmp_path, n=800), step_host_s=0.0025), start_times=None)
    own = fit(tmp_path, path).fitted["step_host_s"]
    assert own.value == pytest.approx(0.0025, rel=0.03)


def test_one_level_of_load_is_told(tmp_path: Path) -> None:
    log = logged(written(tmp_path, n=400), step_host_s=0.0025)
    steady = [
        fit(tmp_path, bench(tmp_path, log, max_concurrency=16, request_rate="inf")),
        fit(tmp_path, bench(tmp_path, log)),
    ]
    texts = [[note for note in each.notes if "one level of load" in note] for each in steady]
    assert texts[0] == [
        "the log has one level of load (16 requests in flight throughout), so host time of a step and of a request "
        "cannot be told apart; add a log at another rate"
    ]
    assert texts[1] == []  # Poisson arrivals at 12 req/s: 3 to 15 in flight


def test_cached_prompts_are_estimated_or_said_to_be_below_what_can_be_seen(tmp_path: Path) -> None:
    log = logged(written(tmp_path, n=600))
    assert fit(tmp_path, bench(tmp_path, log)).cached == (
        "cached prompts are below what TTFT can show: at most 15% of the tokens"
    )
    cut = log.assign(prompt_tokens=(log["prompt_tokens"] * 1.8).astype(int))  # 44% of each prompt was not computed
    result = fit(tmp_path, bench(tmp_path, cut))
    assert result.cached is not None
    assert result.cached.startswith("a prefix cache held about 4")
    assert result.as_shipped["receive_token_s"] == "cached prompts hide it"


@pytest.mark.parametrize(("ends", "seen"), [((0.2, 0.3), True), ((0.1, 0.3), False), ((np.nan, np.nan), False)])
def test_a_share_within_the_error_of_prefill_is_not_seen(ends: tuple[float, float], seen: bool) -> None:
    assert is_seen(Estimate(0.25, *ends)) is seen


def calibrated(folder: Path, log: pd.DataFrame) -> Outcome:
    path = bench(folder, log)
    return invoke("calibrate", "--logs", path, "--scenario", folder / "mine.yaml", "--out", folder / "out")


def test_a_log_that_waits_for_the_most_part_tells_what_its_steps_tell(tmp_path: Path) -> None:
    log = logged(written(tmp_path, n=1500), step_host_s=0.0025).sort_values("arrival_s", ignore_index=True)
    log.loc[300:, ["ttft_s", "e2e_s"]] += 8.0
    outcome = calibrated(tmp_path, log)
    assert outcome.exit_code == 0, outcome.err
    assert "1200 requests are of times that wait in the queue; only their TPOT is used" in " ".join(outcome.err.split())
    assert "step_host_s" in outcome.out
    assert "Use it" in outcome.out


def test_a_constant_at_its_bound_is_exit_1(tmp_path: Path) -> None:
    log = logged(written(tmp_path, n=600))
    log["e2e_s"] = log["ttft_s"] + 0.8 * (log["e2e_s"] - log["ttft_s"])  # faster than without any host
    outcome = calibrated(tmp_path, log)
    assert outcome.exit_code == 1, outcome.err
    assert "step_host_s is at its bound: it stands for another cost" in outcome.err
