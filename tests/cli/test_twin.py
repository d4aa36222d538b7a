"""`simserve twin`: from a server's command line and log to a scenario that runs, with a fit and an answer."""

import json
from pathlib import Path

import pandas as pd
import pytest

import simserve
from tests.cli.invoke import Outcome, invoke
from tests.lab.test_log_checks import bench
from tests.lab.test_log_fit import logged

LINE = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 256 --port 8000"
SERVER = """schema: simserve/1
name: mine
model: llama-3.1-8b
gpu: h100-sxm
engine: {name: vllm, version: "0.19", exposed_step_s: 0.002}
cluster: {pools: [{scheduler: {max_num_seqs: 256}}]}
workload:
  arrivals: {kind: poisson, rate_per_s: 12}
  lengths:
    kind: lognormal
    prompt_tokens: {median: 512, sigma: 0.6, max: 4096}
    output_tokens: {median: 60, sigma: 0.6, max: 300}
  n_requests: 600
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    path = tmp_path_factory.mktemp("server") / "server.yaml"
    path.write_text(SERVER)
    return logged(path)


def twin(folder: Path, *arguments: object, line: str = LINE) -> Outcome:
    return invoke("twin", line, "--gpu", "h100-sxm", "--out", folder / "twin", *arguments)


def test_two_commands_lead_from_a_line_and_a_log_to_the_capacity(log: pd.DataFrame, tmp_path: Path) -> None:
    outcome = twin(tmp_path, "--log", bench(tmp_path, log), "--engine-version", "0.19")
    assert outcome.exit_code == 0, outcome.err
    assert outcome.out.startswith("Explained: Mean E2E is 0.")
    [command] = [line for line in outcome.out.splitlines() if line.startswith("Next: ")]
    scenario = tmp_path / "twin" / "scenario.yaml"
    assert command == f'Next: simserve capacity {scenario} --set "slo={{ttft_s: 0.5, tpot_s: 0.05}}"'
    found = invoke("capacity", scenario, "--set", "slo={ttft_s: 0.5, tpot_s: 0.05}")
    assert found.exit_code == 0, found.err
    assert found.out.startswith("p99 goodput of llama-3.1-8b")


def test_the_folder_is_a_scenario_with_its_load_and_fit(log: pd.DataFrame, tmp_path: Path) -> None:
    outcome = twin(tmp_path, "--log", bench(tmp_path, log), "--slo", "ttft=500ms,tpot=0.05")
    assert outcome.exit_code == 0, outcome.err
    folder = tmp_path / "twin"
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert files == {"scenario.yaml", "load.csv", "twin.json", "twin.parquet", "report.html", "h100-sxm/vllm.json"}
    text = (folder / "scenario.yaml").read_text()
    assert "max_num_seqs: 256  # --max-num-seqs 256" in text
    assert 'version: "0.19"  # assumed' in text
    assert str(tmp_path) not in text
    answer = json.loads((folder / "twin.json").read_text())
    assert answer["word"] == "explained"
    [constant] = answer["fit"]["constants"]
    assert (constant["name"], constant["value"]) == ("exposed_step_s", pytest.approx(0.002, rel=0.02))
    assert answer["slo"] == {"ttft_s": 0.5, "tpot_s": 0.05}
    found = json.loads(invoke("capacity", folder / "scenario.yaml", "--json").out)
    assert answer["slo_met"]["capacity"]["answer"]["offered_per_s"] == found["answer"]["offered_per_s"]
    assert "Attainment against load" in (folder / "report.html").read_text()
    assert answer["scenario"]["digest"] == simserve.load_scenario(folder / "scenario.yaml").digest
    results = simserve.run(folder / "scenario.yaml")
    requests = results.requests.sort_values("arrival_s", ignore_index=True)
    measured = log.sort_values("arrival_s", ignore_index=True)
    assert requests["e2e_s"].mean() == pytest.approx(measured["e2e_s"].mean(), rel=0.01)
    fit = json.loads((folder / "h100-sxm" / "vllm.json").read_text())
    assert fit["host"]["exposed_step_s"]["source"].startswith("fitted to 600 requests of bench.json; 95% CI ")


def test_a_second_twin_takes_the_place_of_the_first(log: pd.DataFrame, tmp_path: Path) -> None:
    path = bench(tmp_path, log)
    twin(tmp_path, "--log", path)
    assert twin(tmp_path, "--log", path).exit_code == 0
    (tmp_path / "twin" / "notes.txt").write_text("mine")
    outcome = twin(tmp_path, "--log", path)
    assert outcome.exit_code == 2
    assert "must be empty or hold only an earlier result, got notes.txt" in outcome.err


def test_the_folder_of_a_twin_is_no_run(log: pd.DataFrame, tmp_path: Path) -> None:
    twin(tmp_path, "--log", bench(tmp_path, log))
    folder = tmp_path / "twin"
    for arguments in (("report", folder), ("export", folder, "--csv", tmp_path / "csv"), ("compare", folder, folder)):
        outcome = invoke(*arguments)
        assert outcome.exit_code == 2
        assert "got that of `simserve twin`" in outcome.err


def test_a_log_of_another_model_is_refused_and_nothing_is_written(log: pd.DataFrame, tmp_path: Path) -> None:
    outcome = twin(tmp_path, "--log", bench(tmp_path, log, model_id="Qwen/Qwen3-32B"))
    assert outcome.exit_code == 2
    assert "must be a log of the scenario's model, llama-3.1-8b in bf16, got one of Qwen/Qwen3-32B" in outcome.err
    assert not (tmp_path / "twin").exists()


def test_a_result_without_requests_gives_a_load_and_no_fit(log: pd.DataFrame, tmp_path: Path) -> None:
    lists = dict.fromkeys(("input_lens", "output_lens", "ttfts", "itls", "start_times"))
    outcome = twin(tmp_path, "--log", bench(tmp_path, log, mean_ttft_ms=30.0, **lists))
    assert outcome.exit_code == 0, outcome.err
    assert outcome.out.startswith("Not fitted: The log has no requests, so constants are as shipped.")
    assert "bench.json has no requests, only means; run the benchmark with --save-result --save-detailed" in outcome.err
    scenario = simserve.load_scenario(tmp_path / "twin" / "scenario.yaml")
    assert scenario.workload.arrivals == {"kind": "poisson", "rate_per_s": 12.0}
    assert scenario.workload.lengths == {
        "kind": "fixed",
        "prompt_tokens": round(log["prompt_tokens"].mean()),
        "output_tokens": round(log["output_tokens"].mean()),
    }
    other = twin(tmp_path, "--log", bench(tmp_path, log, mean_ttft_ms=30.0, model_id="gpt-oss-20b", **lists))
    assert other.exit_code == 2
    assert "bench.json: must be a log of the scenario's model" in other.err


def test_a_log_without_latencies_is_a_load_and_no_fit(log: pd.DataFrame, tmp_path: Path) -> None:
    log[["arrival_s", "prompt_tokens", "output_tokens"]].to_csv(tmp_path / "trace.csv", index=False)
    outcome = twin(tmp_path, "--log", tmp_path / "trace.csv")
    assert outcome.exit_code == 0, outcome.err
    assert "Not fitted: The log has no latencies, so constants are as shipped" in " ".join(outcome.out.split())
    assert len(pd.read_csv(tmp_path / "twin" / "load.csv")) == len(log)


def test_clients_of_a_closed_loop_stay_clients(log: pd.DataFrame, tmp_path: Path) -> None:
    outcome = twin(tmp_path, "--log", bench(tmp_path, log, request_rate="inf", max_concurrency=16))
    assert outcome.exit_code == 0, outcome.err
    assert "simserve capacity" in outcome.out
    assert "--concurrency" in outcome.out
    workload = simserve.load_scenario(tmp_path / "twin" / "scenario.yaml").workload
    assert workload.client == {"kind": "closed_loop", "concurrency": 16}
    assert "the log has one level of load (16 requests in flight throughout)" in outcome.err


def test_a_log_that_is_not_explained_is_exit_1(log: pd.DataFrame, tmp_path: Path) -> None:
    slow = log.assign(e2e_s=log["ttft_s"] + 3 * (log["e2e_s"] - log["ttft_s"]))
    outcome = twin(tmp_path, "--log", bench(tmp_path, slow.head(150)))  # too few for a fit
    assert outcome.exit_code == 1, outcome.err
    assert outcome.out.startswith("Not explained: Mean E2E is 7")
    assert "% off, more than 25.0%. Steps are too short: host time is the likely cause. A log needs at" in outcome.out


def test_without_a_log_the_load_is_assumed(tmp_path: Path) -> None:
    outcome = twin(tmp_path, "--json", line="trtllm-serve qwen3-32b --tp_size 2 --max_batch_size 64")
    assert outcome.exit_code == 0, outcome.err
    answer = json.loads(outcome.out)
    assert (answer["word"], answer["load"]["kind"]) == ("no fit", "assumed")
    assert answer["server"] == "TensorRT-LLM 1.3: qwen3-32b in bf16 on 2 × h100-sxm"


@pytest.mark.parametrize(
    ("arguments", "line", "text"),
    [
        (
            (),
            LINE.replace("--port", "--tensor-parallel-size 3 --port"),
            "command line: --tensor-parallel-size: must divide",
        ),
        ((), LINE.replace("--port", "--scheduling-policy lifo --port"), "command line: --scheduling-policy: must be"),
        (
            (),
            "vllm serve meta-llama/Llama-3.1-70B-Instruct",
            "command line: llama-3.1-70b in bf16 does not fit the memory",
        ),
        (
            ("--gpu", "h100"),
            LINE,
            "command line: gpu: there are several in the catalog, got 'h100'; say which: h100-pcie",
        ),
        (
            ("--slo", "ttft=fast"),
            LINE,
            "--slo: must be seconds of ttft, tpot, e2e, itl, got ttft=fast; for example --slo",
        ),
        (("--slo", "latency=1"), LINE, "--slo: must be seconds of ttft, tpot, e2e, itl, got latency=1"),
        (("--log", "none.json"), LINE, "none.json: no such file; give a table of requests"),
        (("--engine-version", "new"), LINE, "a version of vllm must begin with two numbers, got 'new'"),
    ],
)
def test_bad_input_is_told_at_its_flag(arguments: tuple[str, ...], line: str, text: str, tmp_path: Path) -> None:
    outcome = twin(tmp_path, *arguments, line=line)
    assert outcome.exit_code == 2, outcome.out
    assert text in outcome.err
    assert not (tmp_path / "twin").exists()


def test_python_says_what_the_command_says(log: pd.DataFrame, tmp_path: Path) -> None:
    path = bench(tmp_path, log)
    outcome = twin(tmp_path, "--log", path, "--json")
    answer = simserve.twin(LINE, gpu="h100-sxm", log=[path])
    printed = json.loads(outcome.out)
    assert answer.facts() | {"next_commands": printed["next_commands"]} == printed
    assert answer.decision == "explained"
    assert "Explained" in answer._repr_html_()
    assert set(answer.to_frame()["how"]) == {"simulated", "no effect", "assumed"}
    written = answer.write(tmp_path / "again")
    assert written.next_commands[0].startswith(f"simserve capacity {tmp_path / 'again' / 'scenario.yaml'}")
