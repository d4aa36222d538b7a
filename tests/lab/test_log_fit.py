"""Constants from logs: a server with other constants gives them back, and a log that cannot tell is refused."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simserve import load_scenario, simulate
from simserve.errors import CalibrationError
from simserve.lab.fitted_log import LogFit
from simserve.lab.log_fit import fit_logs
from simserve.lab.server import Server, with_kernels
from simserve.workload.readers.logs import read_log
from tests.cli.invoke import Outcome, invoke

SCENARIO = """schema: simserve/1
name: mine
model: llama-3.1-8b
gpu: h100-sxm
engine: {{name: vllm, version: "{version}"}}
workload:
  arrivals: {{kind: poisson, rate_per_s: {rate}}}
  lengths:
    kind: lognormal
    prompt_tokens: {{median: 512, sigma: 0.6, max: 4096}}
    output_tokens: {{median: 60, sigma: 0.6, max: 300}}
  n_requests: {n}
"""


def written(folder: Path, rate: float = 12, n: int = 600, version: str = "0.12") -> Path:
    path = folder / "mine.yaml"
    path.write_text(SCENARIO.format(rate=rate, n=n, version=version))
    return path


def logged(path: Path, **constants: float) -> pd.DataFrame:
    """Return the log of the server with other constants, and with kernels of own.json beside it."""
    kernels = [f"cluster.pools=[{{calibration: {own}}}]"] if (own := path.with_name("own.json")).is_file() else []
    server = load_scenario(path, overrides=[*kernels, *(f"engine.{name}={each}" for name, each in constants.items())])
    columns = ["arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "e2e_s"]
    return simulate(server).requests[columns]


def fit(folder: Path, log: pd.DataFrame, **how: Any) -> LogFit:
    log.to_csv(folder / "log.csv", index=False)
    return fit_logs([read_log(folder / "log.csv")], Server(written(folder, **how)))


@pytest.mark.parametrize(
    "constants",
    [
        {"step_host_s": 0.0025},
        {"step_host_s": 0.0025, "request_host_s": 9e-5, "respond_s": 0.005},
        {"busy_compute_frac": 0.7, "respond_s": 0.004},
    ],
    ids=["one", "three", "kernels"],
)
def test_a_server_gives_its_constants_back(constants: dict[str, float], tmp_path: Path) -> None:
    result = fit(tmp_path, logged(written(tmp_path, n=2000), **constants), n=2000)
    assert result.fitted.keys() == constants.keys()
    for name, value in constants.items():
        own = result.fitted[name]
        assert own.low <= own.value <= own.high
        assert abs(value - own.value) < max(own.high - own.low, 0.01 * value)
        assert not own.low <= own.shipped <= own.high
    for error in result.errors.values():
        assert error.fitted_frac < 0.015
        assert error.fitted_frac < error.shipped_frac / 3


def test_a_server_gives_its_kernels_back(tmp_path: Path) -> None:
    """Also into the file that a scenario then names, with the factors that it was slowed by."""
    path = written(tmp_path, n=2000)
    base = Server(path).calibration
    assert base is not None
    (tmp_path / "own.json").write_text(json.dumps(with_kernels(base, {"matrices": 1.1})))
    logged(path).to_csv(tmp_path / "log.csv", index=False)
    outcome = invoke("calibrate", "--logs", tmp_path / "log.csv", "--scenario", path, "--out", tmp_path / "out")
    assert outcome.exit_code == 0, outcome.err
    file = tmp_path / "out" / "h100-sxm" / "vllm.json"
    fitted = json.loads(file.read_text())
    assert fitted["made"]["factors"] == {"matrices": pytest.approx(1.1, rel=0.01)}
    used = load_scenario(path, overrides=[f"cluster.pools=[{{calibration: {file}}}]"])
    assert simulate(used).requests["e2e_s"].mean() == pytest.approx(logged(path)["e2e_s"].mean(), rel=0.005)


def test_noise_of_a_server_is_in_the_interval(tmp_path: Path) -> None:
    """Steps and front end of the server vary by chance, request by request."""
    log = logged(written(tmp_path, n=1500), step_host_s=0.0025)
    generator = np.random.default_rng(3)
    decode_s = (log["e2e_s"] - log["ttft_s"]) * generator.lognormal(-0.00125, 0.05, len(log))
    log["ttft_s"] *= generator.lognormal(-0.02, 0.2, len(log))
    log["e2e_s"] = log["ttft_s"] + decode_s
    own = fit(tmp_path, log, n=1500).fitted["step_host_s"]
    assert own.low <= 0.0025 <= own.high
    assert 5e-6 < own.high - own.low < 2e-4


def test_constants_of_the_shipped_server_stay(tmp_path: Path) -> None:
    result = fit(tmp_path, logged(written(tmp_path)))
    assert result.fitted == {}
    assert result.as_shipped["step_host_s"] == "does not lower the error of what is left out"
    assert result.as_shipped["exposed_step_s"] == "has no effect in these logs"


def test_host_work_that_hides_is_not_fitted(tmp_path: Path) -> None:
    result = fit(tmp_path, logged(written(tmp_path, version="0.15"), exposed_step_s=0.001), version="0.15")
    assert list(result.fitted) == ["exposed_step_s"]
    assert result.fitted["exposed_step_s"].value == pytest.approx(0.001, rel=0.02)


def test_several_logs_are_left_out_in_turn(tmp_path: Path) -> None:
    paths = []
    for rate in (4, 12):
        log = logged(written(tmp_path, rate=rate, n=400), step_host_s=0.003)
        paths.append(tmp_path / f"log{rate}.csv")
        log.to_csv(paths[-1], index=False)
    result = fit_logs([read_log(path) for path in paths], Server(written(tmp_path)))
    assert (result.parts, result.n_requests) == ("the lighter and the heavier half of the load", 800)
    assert result.fitted["step_host_s"].value == pytest.approx(0.003, rel=0.01)


def test_a_log_that_is_too_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"log.csv: a log needs at least 200 answered requests, got 150"):
        fit(tmp_path, logged(written(tmp_path, n=150)))


def test_a_log_that_waits_throughout_tells_its_steps(tmp_path: Path) -> None:
    log = logged(written(tmp_path), step_host_s=0.0025)
    log[["e2e_s", "ttft_s"]] += 5.0
    result = fit(tmp_path, log)
    assert list(result.fitted) == ["step_host_s"]
    assert result.fitted["step_host_s"].value == pytest.approx(0.0025, rel=0.02)
    assert list(result.errors) == ["tpot_s"]


def test_parts_of_a_log_that_wait_tell_their_steps_alone(tmp_path: Path) -> None:
    log = logged(written(tmp_path, n=1000), step_host_s=0.0025)
    log.loc[log.index[:200], ["ttft_s", "e2e_s"]] += 5.0
    result = fit(tmp_path, log, n=1000)
    (note,) = result.notes
    assert note.endswith("200 requests are of times that wait in the queue; only their TPOT is used")
    assert (result.n_requests, result.left_out) == (1000, {})
    assert result.fitted["step_host_s"].value == pytest.approx(0.0025, rel=0.02)


def test_clients_that_gave_up_are_left_out_of_an_overloaded_log(tmp_path: Path) -> None:
    """They have neither a prompt nor a first token, and were never in a batch."""
    log = logged(written(tmp_path, n=800), step_host_s=0.0025)
    log.loc[log.index[::8], ["prompt_tokens", "ttft_s"]] = 0, np.nan
    log.to_csv(tmp_path / "log.csv", index=False)
    read = read_log(tmp_path / "log.csv")
    assert (len(read), read.n_failed) == (700, 100)


def test_requests_that_beat_the_roofline_are_left_out_and_counted(tmp_path: Path) -> None:
    log = logged(written(tmp_path), step_host_s=0.0025)
    fast = log.index[10:16]
    log.loc[fast, "e2e_s"] += 1e-4 - log.loc[fast, "ttft_s"]
    log.loc[fast, "ttft_s"] = 1e-4
    result = fit(tmp_path, log)
    assert result.left_out == {"faster than the data sheet allows": 6}
    (note,) = result.notes
    assert "6 of 600 requests beat the bare roofline of the scenario (line 12, 13, 14, ...)" in note
    assert "were prompts cached? add hash_ids" in note
    assert result.fitted["step_host_s"].value == pytest.approx(0.0025, rel=0.02)


def test_a_log_of_a_smaller_model_is_refused(tmp_path: Path) -> None:
    log = logged(written(tmp_path))
    log["e2e_s"] = log["ttft_s"] + (log["e2e_s"] - log["ttft_s"]) / 4
    with pytest.raises(CalibrationError, match=r"beat the bare roofline .*reading the weights once \(another model, w"):
        fit(tmp_path, log)


def calibrated(folder: Path, *more: object, version: str = "0.12", **constants: float) -> Outcome:
    path = written(folder, version=version)
    logged(path, **constants).to_csv(folder / "log.csv", index=False)
    return invoke("calibrate", "--logs", folder / "log.csv", "--scenario", path, "--out", folder / "out", *more)


@pytest.mark.parametrize(("version", "respond_s"), [("0.12", 0.006), ("0.15", 0.009)])
def test_run_takes_the_calibration(version: str, respond_s: float, tmp_path: Path) -> None:
    """Constants of 0.15 count although the catalog changes respond_s in 0.14."""
    outcome = calibrated(tmp_path, "--json", version=version, respond_s=respond_s, busy_compute_frac=0.7)
    assert outcome.exit_code == 0, outcome.err
    facts = json.loads(outcome.out)
    assert facts["fitted"].keys() == {"respond_s", "busy_compute_frac"}
    file = tmp_path / "out" / "h100-sxm" / "vllm.json"
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(name in page for name in (*facts["fitted"], *facts["as_shipped"]))
    used = load_scenario(tmp_path / "mine.yaml", overrides=[f"cluster.pools=[{{calibration: {file}}}]"]).setups[0]
    plain = load_scenario(tmp_path / "mine.yaml").setups[0]
    for name, each in facts["fitted"].items():
        assert getattr(used.engine, name) == each["value"] != getattr(plain.engine, name)
    assert used.engine.step_host_s == plain.engine.step_host_s
    assert used.engine.async_scheduling == plain.engine.async_scheduling == (version == "0.15")
    assert used.calibrated
    again = calibrated(tmp_path, "--json", version=version, respond_s=respond_s, busy_compute_frac=0.7)
    assert again.out == outcome.out


@pytest.mark.parametrize("version", ["0.12", "0.15"])
def test_a_log_in_which_nothing_moves_leaves_every_time_as_it_was(version: str, tmp_path: Path) -> None:
    """Also that of gaps between kernels, which no log tells from step_host_s: it fell to the catalog's."""
    outcome = calibrated(tmp_path, "--json", version=version)
    assert outcome.exit_code == 0, outcome.err
    assert json.loads(outcome.out)["fitted"] == {}
    file = tmp_path / "out" / "h100-sxm" / "vllm.json"
    path, own = tmp_path / "mine.yaml", [f"cluster.pools=[{{calibration: {file}}}]"]
    plain, used = (simulate(load_scenario(path, overrides=changes)).requests for changes in ([], own))
    assert used[["ttft_s", "e2e_s"]].equals(plain[["ttft_s", "e2e_s"]])


def test_the_terminal_says_what_moved_what_stayed_and_how_to_use_it(tmp_path: Path) -> None:
    outcome = calibrated(tmp_path, step_host_s=0.0025)
    assert outcome.exit_code == 0, outcome.err
    assert outcome.out.startswith(
        "1 constant is fitted to 600 requests. Errors of predicted means over halves of the log"
    )
    assert "step_host_s" in outcome.out
    assert "exposed_step_s     has no effect in these logs" in outcome.out
    assert f"cluster.pools.0.calibration={tmp_path / 'out' / 'h100-sxm' / 'vllm.json'}" in outcome.out


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("h100-sxm",), "takes GPU and engine from --scenario, and does not go with GPU; leave them out"),
        (("--engine", "vllm"), "does not go with --engine; leave them out"),
    ],
)
def test_gpu_and_engine_come_from_the_scenario(more: tuple[str, ...], text: str, tmp_path: Path) -> None:
    written(tmp_path)
    outcome = invoke("calibrate", "--logs", tmp_path / "log.csv", "--scenario", tmp_path / "mine.yaml", *more)
    assert outcome.exit_code == 2
    assert text in " ".join(outcome.err.split())


def test_logs_need_a_scenario_and_a_gpu_is_needed_without(tmp_path: Path) -> None:
    for arguments in (("--logs", tmp_path / "log.csv"), ("--scenario", written(tmp_path)), ()):
        assert invoke("calibrate", *arguments).exit_code == 2


def test_pools_that_differ_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text() + "cluster: {pools: [{gpu: h100-sxm}, {name: b, gpu: l40s}]}\n")
    with pytest.raises(CalibrationError, match="the pools must have one GPU and the engine of the scenario, got 2"):
        Server(path)


def test_a_card_without_timings_of_its_own_gets_the_constants_for_its_engine_section(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text().replace("h100-sxm", "rtx-4090").replace("rate_per_s: 12", "rate_per_s: 4"))
    logged(path, step_host_s=0.004).to_csv(tmp_path / "log.csv", index=False)
    outcome = invoke("calibrate", "--logs", tmp_path / "log.csv", "--scenario", path, "--out", tmp_path / "out")
    assert outcome.exit_code == 0, outcome.err
    assert not (tmp_path / "out" / "rtx-4090").exists()
    assert "Use them: engine: {'name': 'vllm', 'version': '0.12', 'step_host_s': 0.00" in outcome.out


LOGS = Path(__file__).parents[3] / "shared" / "data" / "logs"
"""Logs of vLLM 0.15.1 on H100, outside the project."""

SERVED = """schema: simserve/1
name: served
model: {model}
gpu: h100-sxm
weight_dtype: fp16
kv_dtype: bf16
engine: {{name: vllm, version: "0.15.1"}}
cluster:
  pools:
    - parallel: {{tensor: {tensor}}}
      num_gpu_blocks: {blocks}
      max_model_len: 4096
      scheduler: {{kind: chunked, max_num_seqs: 128, max_num_batched_tokens: 2048}}
"""


@pytest.mark.skipif(not LOGS.is_dir(), reason="logs of real servers are not here")
@pytest.mark.parametrize(
    ("log", "model", "tensor", "blocks"),
    [
        ("llama-2-70b-hf-tp4-codegen", "llama-2-70b", 4, 31356),
        ("mixtral-8x7b-v0-1-tp2-codegen", "mixtral-8x7b", 2, 27510),
    ],
)
def test_errors_left_out_of_real_logs_fall_or_stay(
    log: str, model: str, tensor: int, blocks: int, tmp_path: Path
) -> None:
    (tmp_path / "server.yaml").write_text(SERVED.format(model=model, tensor=tensor, blocks=blocks))
    with gzip.open(LOGS / f"h100-vllm-0.15.1-{log}.csv.gz", "rt") as file:
        (tmp_path / "log.csv").write_text("".join(file.readlines()[:3000]))
    result = fit_logs([read_log(tmp_path / "log.csv")], Server(tmp_path / "server.yaml"))
    assert sum(each.fitted_frac - each.shipped_frac for each in result.errors.values()) <= 0
    assert result.errors["e2e_s"].fitted_frac <= result.errors["e2e_s"].shipped_frac
