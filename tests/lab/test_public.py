"""Public data sets: runs of a folder by set, errors and coverage worked by hand, and what was fitted to what."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve import simulate
from simserve.errors import CalibrationError
from simserve.lab.league import KNOWLEDGE, DataSet, data_set_of, league_facts
from simserve.lab.public import Case, predict_public, read_public, spread_out
from simserve.lab.runs import MeasuredRun, PredictedSpread, Prediction
from simserve.lab.server_logs import LOGS
from simserve.scenario import Scenario
from tests.lab.test_settings import ROW

ROOT = Path(__file__).resolve().parents[2]
DATA = next((each for each in (ROOT / "shared" / "data", ROOT.parent / "shared" / "data") if each.is_dir()), None)
"""Public data, outside the project."""

HEAD = "engine,engine_version,gpu,model,weight_dtype,tp,isl,osl,concurrency,ttft_ms_mean,tpot_ms_mean"
RUNS_JSON: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "tensor_parallel_size": 1,
    "max_num_seqs": 128,
    "max_num_batched_tokens": 2048,
    "kv_blocks_total_gpu": 20000,
    "block_size": 16,
    "max_model_len": 4096,
    "vllm": "0.15.1",
    "gpu": "h100-sxm, one",
    "stages": [{"duration": 10, "rate": 4}, {"duration": 10, "rate": 8}],
}
SERVER: dict[str, Any] = {
    "schema": "simserve/1",
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "engine": {"name": "vllm", "version": "0.15.1"},
    "cluster": {
        "pools": [
            {
                "num_gpu_blocks": 20000,
                "max_model_len": 4096,
                "scheduler": {"kind": "chunked", "max_num_seqs": 128, "max_num_batched_tokens": 2048},
            }
        ]
    },
    "workload": {
        "arrivals": {"kind": "constant", "rate_per_s": 6},
        "lengths": {"kind": "uniform", "prompt_tokens": [100, 900], "output_tokens": [20, 120]},
        "duration_s": 20,
    },
}


def serving(folder: Path, *rows: str, name: str = "h100_serving.csv") -> None:
    (folder / "serving").mkdir(exist_ok=True)
    (folder / "serving" / name).write_text("\n".join([HEAD, *rows]) + "\n")


def row(isl: int = 256, concurrency: int = 4, engine: str = "vllm,0.12.0") -> str:
    return f"{engine},h100_sxm,meta-llama/Llama-3.1-8B-Instruct,bf16,1,{isl},16,{concurrency},40.5,7.25"


def logs(folder: Path, **changes: Any) -> None:
    """Write a simulated run as the log of a server, with its settings."""
    requests = simulate(Scenario.from_dict(SERVER)).columns["requests"]
    names = ("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "e2e_s")
    lines = [
        ",".join(names),
        *(",".join(map(repr, each)) for each in zip(*(requests[n].tolist() for n in names), strict=True)),
    ]
    (folder / "logs").mkdir()
    with gzip.open(folder / "logs" / "h100-vllm-a-log.csv.gz", "wt") as file:
        file.write("\n".join(lines))
    (folder / "logs" / "runs.json").write_text(json.dumps({"a-log": RUNS_JSON | changes, "b-log": RUNS_JSON}))


def run(measured_s: float, predicted_s: float | None, source: str, ends: tuple[float, float]) -> Prediction:
    server = ("vllm", "0.1", "h100-sxm", "qwen3-32b", "bf16")
    return Prediction(
        MeasuredRun(source, *server, "a run", {"tpot": measured_s}),
        None if predicted_s is None else {"tpot": predicted_s, "ttft": 1.0, "e2e": 1.0},
        spread=PredictedSpread({"tpot": ends}, {"tpot": 0.05}),
        reason="" if predicted_s else "too large",
    )


def test_a_simulated_log_has_no_error_in_any_stage_and_is_inside_its_intervals(tmp_path: Path) -> None:
    logs(tmp_path)
    cases, skipped = read_public(tmp_path)
    assert "logs/b-log.csv.gz is not there" in skipped
    first, second = predict_public(cases)
    assert data_set_of(first.run) == DataSet("logs", "vllm", "h100-sxm", "llama-3.1-8b bf16")
    assert (first.run.version, data_set_of(first.run).knowledge.in_sample) == ("0.15.1", "partly")
    assert (first.run.label, second.run.label) == ("a-log, 60 requests from 0 s on", "a-log, 60 requests from 10 s on")
    for stage in (first, second):
        assert stage.predicted_s == pytest.approx(stage.run.measured_s, rel=1e-6)
        for name, (low_s, high_s) in stage.spread.intervals_s.items():
            assert low_s < stage.run.measured_s[name] < high_s
    assert first.run.measured_s["ttft"] != second.run.measured_s["ttft"]


def test_lengths_of_a_set_tell_its_client(tmp_path: Path) -> None:
    """InferenceMAX draws lengths from 0.8 of nominal on, so its prompts are a tenth shorter."""
    both = "sglang,0.5.9,h100_sxm,meta-llama/Llama-3.1-8B,bf16,1,{},{},2,40.5,7.25"
    serving(tmp_path, both.format(1024, 8192), both.format(8192, 1024), row(1024))
    cases, _ = read_public(tmp_path, 2)
    of_inferencemax, _, other = (case.predict()[0] for case in cases)
    assert (of_inferencemax.run.engine, other.run.engine) == ("sglang", "vllm")
    assert of_inferencemax.predicted_s is not None
    tokens = (
        1
        + (of_inferencemax.predicted_s["e2e"] - of_inferencemax.predicted_s["ttft"])
        / (of_inferencemax.predicted_s["tpot"])
    )
    assert 0.8 * 8192 < tokens < 0.98 * 8192


def test_cold_starts_are_part_of_ttft_and_its_interval(tmp_path: Path) -> None:
    def predicted(model: str) -> Prediction:
        serving(tmp_path, f"trtllm,,h200_sxm,{model},mxfp4,8,1024,1024,1,100,5", name="runs.csv")
        (case,) = read_public(tmp_path, requests_per_client=2)[0]
        (result,) = case.predict()
        return result

    cold, warm = predicted("openai/gpt-oss-120b"), predicted("openai/gpt-oss-20b")
    for result, least_s in ((cold, 0.3), (warm, 0.0)):
        assert result.predicted_s is not None
        assert least_s < result.predicted_s["ttft"] < least_s + 0.2
        low_s, high_s = result.spread.intervals_s["ttft"]
        assert low_s < result.predicted_s["ttft"] < high_s


def test_long_answers_of_many_clients_and_settings_that_contradict_themselves_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "serving").mkdir()
    rows: list[dict[str, Any]] = [
        {},
        {"concurrency": 1025, "osl": 1025},
        {"n_gpus_decode": 8},
        {"hardware": "l40s", "osl": 20},
    ]
    lines = [",".join(map(str, ROW)), *(",".join(map(str, (ROW | each).values())) for each in rows)]
    (tmp_path / "serving" / "inferencex.csv").write_text("\n".join(lines))
    cases, skipped = read_public(tmp_path, 2)
    assert skipped[-2:] == [
        "1 of serving/inferencex.csv: columns disagree about the number of GPUs",
        "1 of serving/inferencex.csv: long answers of ranks that wait for each other, to more than 1024 clients",
    ]
    good, refused = predict_public(cases)
    assert data_set_of(good.run).model == "deepseek-v3 fp8 disaggregated"
    assert good.predicted_s is not None
    assert refused.predicted_s is None
    assert "does not fit the memory" in refused.reason


def test_cases_of_each_set_are_spread_evenly() -> None:
    a, b = DataSet("a", "vllm", "g", "m"), DataSet("b", "vllm", "g", "m")
    cases = [Case(data_set, str(i), list) for data_set, n in ((a, 9), (b, 2)) for i in range(n)]
    assert [(case.data_set.file, case.label) for case in spread_out(cases, 3)] == [
        *(("a", "0"), ("a", "4"), ("a", "8")),
        *(("b", "0"), ("b", "1")),
    ]


def test_errors_and_coverage_are_of_what_was_predicted() -> None:
    fitted = DataSet("h100_serving.csv", "vllm", "h100-sxm", "qwen3-32b bf16")
    other = DataSet("mine.csv", "vllm", "h100-sxm", "qwen3-32b bf16")
    runs = [
        run(1.0, 1.2, fitted.file, (1.1, 1.3)),
        run(1.0, 0.6, fitted.file, (0.5, 1.0)),
        run(1.0, 1.1, other.file, (0.9, 1.2)),
        run(1.0, None, other.file, (0.9, 1.2)),
    ]
    facts = league_facts(runs, {fitted: 45, other: 2}, ["a file is not there"])
    one, two = facts["sets"]
    assert one["errors"]["tpot"]["mape_frac"] == pytest.approx(0.3)
    assert one["errors"]["tpot"]["bias_frac"] == pytest.approx(-0.1)
    assert (one["within_frac"]["tpot"], one["in_sample"], one["n_in_folder"]) == (0.5, "yes", 45)
    assert (one["errors"]["e2e"], one["within_frac"]["e2e"]) == (None, None)
    assert (two["n_runs"], two["n_refused"], two["in_sample"]) == (2, 1, "no")
    assert facts["not_fitted"]["errors"]["tpot"]["mape_frac"] == pytest.approx(0.1)
    assert facts["partly_fitted"]["n_runs"] == 0
    (peers,) = facts["peers"]
    assert peers["runs"] == "h100_serving.csv vllm"
    assert peers["published"][0]["errors_frac"]["tpot"] == (0.109, 0.109)


def test_what_is_called_in_sample_is_what_shipped_constants_were_fitted_to() -> None:
    fitted = set()
    for path in (ROOT / "calibration").glob("*/*.json"):
        without_kernels = {**json.loads(path.read_text(encoding="utf-8")), "kernels": None}
        names = {each.file for each in KNOWLEDGE if each.file in str(without_kernels)}
        fitted |= {(without_kernels["engine"], name) for name in names - {LOGS}}
    claimed = {(each.engine, each.file) for each in KNOWLEDGE if each.in_sample == "yes"}
    assert claimed == fitted
    assert DataSet("mine.csv", "vllm", "h100-sxm", "qwen3-32b bf16").knowledge.in_sample == "no"


def test_a_folder_without_runs_is_refused_with_the_layout(tmp_path: Path) -> None:
    with pytest.raises(
        CalibrationError, match=r"must hold public runs as serving/h100_serving\.csv, .*docs/league\.md"
    ):
        read_public(tmp_path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gpu": "h1"}, "a-log: scenario: gpu: no such GPU"),
        ({"stages": [{"rate": 4}]}, "a-log must give model, .* got no duration; complete the entry"),
        ({"model": "unheard-of-7b"}, "no such model in the catalog"),
    ],
)
def test_settings_of_a_log_that_cannot_be_read_are_named(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    logs(tmp_path, **changes)
    with pytest.raises(CalibrationError, match=sentence):
        read_public(tmp_path)


@pytest.mark.skipif(DATA is None, reason="public runs are not here")
def test_a_run_of_each_engine_of_the_first_campaign_is_predicted_as_before() -> None:
    assert DATA is not None
    cases, skipped = read_public(DATA)
    assert not [each for each in skipped if "is not there" in each]
    first = [case for case in cases if case.data_set.file == "h100_serving.csv"]
    runs = predict_public(spread_out(first, 2))
    errors = [abs(each.ratio("tpot") - 1) for each in runs if each.predicted_s]
    assert len(runs) == 8
    assert np.mean(errors) < 0.08
