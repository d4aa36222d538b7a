"""Cards fitted to serving runs: known factors are found again, and what runs cannot tell stays and is told."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from simserve import catalog
from simserve.cost.calibration import calibration_path, launch_factor, read_calibration
from simserve.errors import CalibrationError
from simserve.input_files import read_json
from simserve.lab.campaigns import CAMPAIGNS
from simserve.lab.card_fit import APART, factors_for, fit_card, read_runs
from simserve.lab.runs import MeasuredRun, predict
from simserve.lab.write import FACTORS, base_of, card_content, card_data
from tests.cli.invoke import invoke

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "serving" / "inferencex.csv"
BASE = "h100-sxm/sglang"
HEAD = "engine,engine_version,gpu,model,weight_dtype,tp,isl,osl,concurrency,ttft_ms_mean,tpot_ms_mean"
SERVERS = [(tp, isl, osl, n) for tp in (1, 2, 4) for isl, osl in ((256, 64), (4096, 64)) for n in (1, 8, 24)]


def table(folder: Path, versions: Sequence[str] = ("",), servers: Sequence[tuple[int, ...]] = SERVERS) -> Path:
    """Write a table of runs on an MI300X; latencies are made up."""
    path = folder / "runs.csv"
    lines = [
        f"sglang,{version},mi300x,llama-3.1-8b,bf16,{tp},{isl},{osl},{n},100,10"
        for version in versions
        for tp, isl, osl, n in servers
    ]
    path.write_text("\n".join([HEAD, *lines]) + "\n")
    return path


def measured(
    folder: Path, theta: Mapping[str, float], versions: Sequence[str] = (), servers: Sequence[tuple[int, ...]] = SERVERS
) -> list[MeasuredRun]:
    """Return runs of a server whose kernels take known factors longer."""
    runs, _ = read_runs(table(folder, versions or ("",), servers), "mi300x", "sglang", CAMPAIGNS["plain"])
    path = folder / "true.json"
    path.write_text(json.dumps(card_content(read_json(calibration_path(BASE)), "mi300x", theta, versions)))
    return [replace(run, measured_s=_means(run, path)) for run in runs]


def _means(run: MeasuredRun, calibration: Path) -> dict[str, float]:
    prediction = predict(run, calibration=calibration)
    return {name: prediction.mean_s(name) for name in run.measured_s}


@pytest.mark.parametrize(
    "true",
    [
        {"attention": 2.0, "launches": 3.0},
        pytest.param(
            {"matrices": 1.3, "attention": 2.0, "collectives": 1.8, "launches": 3.0}, marks=pytest.mark.thorough
        ),
    ],
    ids=len,
)
def test_known_factors_are_found_again(true: dict[str, float], tmp_path: Path) -> None:
    servers = SERVERS[:: len(FACTORS) // len(true)]
    fit = fit_card(measured(tmp_path, true, servers=servers), BASE, tuple(FACTORS))
    assert {name: each.value for name, each in fit.fitted.items()} == pytest.approx(true, rel=0.03)
    assert all(each.low <= each.value * 1.02 and each.value <= each.high * 1.02 for each in fit.fitted.values())
    assert fit.errors["tpot_s"].fitted_frac < 0.02 < 0.2 < fit.errors["tpot_s"].scaled_frac
    assert fit.as_scaled.keys() == FACTORS - true.keys()
    assert len(fit.parts) == 3  # one for each number of GPUs


def test_launches_of_each_version_are_found_and_other_factors_are_common(tmp_path: Path) -> None:
    versions = ("0.5.5", "0.5.9", "0.5.12")
    true = {"launches 0.5.5": 5.0, "launches 0.5.9": 4.0, "launches 0.5.12": 2.0}
    fit = fit_card(measured(tmp_path, true, versions, SERVERS[:6]), BASE, tuple(FACTORS))
    assert {name: each.value for name, each in fit.fitted.items()} == pytest.approx(true, rel=0.03)
    assert fit.as_scaled["collectives"] == "has no effect in these runs"  # one GPU
    data = card_data(fit, measured(tmp_path, {}, versions, SERVERS[:6]), [], {})
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data))
    card = read_calibration(path)
    assert card.runs is not None and card.runs.n_rows == 18
    newest, older = (card.of_version(version).forms["gemm", "bf16"] for version in ("0.5.12", "0.5.5"))
    timed = read_calibration(calibration_path(BASE)).forms["gemm", "bf16"]
    assert [each.launch_s / timed.launch_s for each in (newest, older)] == pytest.approx([2, 5], rel=0.03)  # type: ignore[attr-defined]


def test_the_launches_of_a_version_are_those_of_the_newest_one_that_is_not_newer() -> None:
    launches = {"0.5.5": 5.0, "0.5.9": 4.0, "0.5.12": 2.0}
    asked = ("0.5.4", "0.5.5.post3", "0.5.10", "0.5.12", "0.6.0", "0.5")
    assert [launch_factor(launches, version) for version in asked] == [5, 5, 4, 2, 2, 2]
    assert launch_factor({}, "0.5.5") == 1


def test_too_few_runs_for_another_factor_leave_it_and_say_so(tmp_path: Path) -> None:
    servers = [(1, 256, 64, 1), (2, 256, 64, 8), (4, 4096, 64, 1), (4, 4096, 64, 8)]
    true = {"matrices": 2.0, "attention": 2.0, "launches": 2.0}
    fit = fit_card(measured(tmp_path, true, servers=servers), BASE, tuple(FACTORS))
    assert len(fit.fitted) == 1
    assert set(fit.as_scaled.values()) <= {"8 runs would be needed, there are 4", "has no effect in these runs"}
    assert len(fit.as_scaled) == 3


def test_runs_that_the_scaled_kernels_predict_leave_them(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"these runs tell no factor of .*; the scaled kernels stay"):
        fit_card(measured(tmp_path, {}, servers=SERVERS[::2]), BASE, tuple(FACTORS))
    alike = measured(tmp_path, {"launches": 3.0}, servers=SERVERS[:3])
    with pytest.raises(CalibrationError, match="runs of at least 3 models, splits, versions or lengths are needed"):
        fit_card(alike, BASE, tuple(FACTORS))


def test_servers_with_prefill_and_decode_apart_tell_matrices_and_launches_at_most(tmp_path: Path) -> None:
    runs = measured(tmp_path, {}, servers=SERVERS[:1])
    assert factors_for(runs) == tuple(FACTORS)
    assert factors_for([*runs, replace(runs[0], kind="disaggregated")]) == APART


def test_a_card_takes_the_kernels_of_the_card_it_resembles_and_one_with_timings_keeps_its_own() -> None:
    assert base_of("mi300x", "sglang", "h100-sxm") == "h100-sxm/sglang"
    assert base_of("mi355x", "sglang", "mi300x") == "mi300x/sglang"
    assert base_of("rtx-pro-6000", "sglang", None) == "rtx-pro-6000/vllm"
    with pytest.raises(CalibrationError, match="h200-sxm/sglang has timed kernels"):
        base_of("h200-sxm", "sglang", None)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ("mi325x", "--engine", "sglang"),
            "runs.csv: must have runs of sglang on mi325x that tell the time of kernels",
        ),
        (("mi300x", "--engine", "vllm"), "must have runs of vllm on mi300x"),
        (("h100-sxm", "--engine", "sglang"), "h100-sxm/sglang has timed kernels, which serving runs do not replace"),
        (("mi300x", "--engine", "sglang", "--engine-version", "1"), "No such option: --engine-version"),
        (("mi300x", "--engine", "sglang", "--campaign", "mine"), "mine"),
        (("mi300x", "--engine", "sglang"), "runs of at least 3 models, splits, versions or lengths are needed"),
    ],
)
def test_what_cannot_be_fitted_is_an_error_and_writes_nothing(
    options: tuple[str, ...], text: str, tmp_path: Path
) -> None:
    rows = table(tmp_path, servers=SERVERS[:2])
    outcome = invoke("lab", "card", options[0], rows, *options[1:], "--out", tmp_path / "out")
    assert outcome.exit_code == 2
    assert text in " ".join(outcome.err.split())
    assert not (tmp_path / "out").exists()


def test_the_command_writes_a_calibration_that_runs_use_and_say_what_it_is(tmp_path: Path) -> None:
    rows = table(tmp_path, servers=[each for each in SERVERS if each[1] == 256])
    true = measured(tmp_path, {"launches": 4.0}, servers=[each for each in SERVERS if each[1] == 256])
    times = [f"{run.measured_s['ttft'] * 1e3},{run.measured_s['tpot'] * 1e3}" for run in true]
    lines = rows.read_text().splitlines()
    lines[1:] = [line.replace(",100,10", f",{each}") for line, each in zip(lines[1:], times, strict=True)]
    rows.write_text("\n".join([*lines, lines[1].replace("mi300x", "h100-sxm")]) + "\n")
    command = ("lab", "card", "mi300x", rows, "--engine", "sglang", "--campaign", "plain")
    outcome = invoke(*command, "--out", tmp_path / "out")
    assert outcome.exit_code == 0, outcome.err
    assert "Fitted to 9 runs; each of 3 parts is left out in turn." in outcome.out
    assert "rows left out: 1, of other cards or engines" in outcome.err
    path = tmp_path / "out" / "mi300x" / "sglang.json"
    assert launch_factor(read_calibration(path).launches, "0.5") == pytest.approx(4, rel=0.03)
    before = path.read_bytes()
    assert f"unchanged: {path}" in invoke(*command, "--out", tmp_path / "out").err
    assert path.read_bytes() == before
    scenario = tmp_path / "mine.yaml"
    scenario.write_text(
        "{schema: simserve/1, model: qwen3-8b, gpu: mi300x, engine: sglang, workload: {arrivals: {kind: poisson, "
        "rate_per_s: 1}, lengths: {kind: fixed, prompt_tokens: 64, output_tokens: 8}, n_requests: 20}}\n"
    )
    with_it = ("--set", f"cluster.pools.0.calibration={path}")
    shown = " ".join(invoke("explain", scenario, *with_it).out.split())
    assert "Kernels: those of h100-sxm under sglang, fitted to 9 serving runs of llama-3.1-8b on mi300x: " in shown
    assert "(fitted to serving runs)" in shown
    told = " ".join(invoke("run", scenario, *with_it, "--out", tmp_path / "run", "--no-report").err.split())
    assert "fitted to 9 serving runs, none of them of qwen3-8b; its kernels were not timed. Runs left out" in told
    refused = invoke("lab", "kernels", path)
    assert refused.exit_code == 2
    assert "is fitted to serving runs, without kernels held out; validate a table of runs" in " ".join(
        refused.err.split()
    )


SHIPPED = ("mi300x/sglang", "mi355x/sglang")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_fit_names_its_runs_and_is_of_the_kernels_of_today(name: str) -> None:
    section = read_json(calibration_path(name))["runs"]
    assert [len(each["sha256"]) for each in section["files"]] == [64]
    timed = section["kernels_of"]
    assert timed["sha256"] == read_calibration(calibration_path(timed["name"])).sha256, (
        f"{timed['name']} has changed: fit {name} to its runs again (CONTRIBUTING.md)"
    )
    errors = section["left_out"]["errors"]
    assert errors["tpot_s"]["fitted_frac"] < errors["tpot_s"]["scaled_frac"]
    assert section["fitted"].keys().isdisjoint(section["as_scaled"])


@pytest.mark.thorough
@pytest.mark.skipif(not DATA.exists(), reason=f"needs {DATA.name}, which is not shipped")
@pytest.mark.parametrize("name", SHIPPED)
def test_a_refit_gives_the_shipped_file_to_the_last_bit(name: str, tmp_path: Path) -> None:
    gpu, engine = name.split("/")
    shipped = calibration_path(name)
    copy = tmp_path / f"{name}.json"
    copy.parent.mkdir()
    copy.write_bytes(shipped.read_bytes())
    outcome = invoke("lab", "card", gpu, DATA, "--engine", engine, "--out", tmp_path)
    assert f"unchanged: {copy}" in outcome.err
    assert copy.read_bytes() == shipped.read_bytes()


def test_the_card_that_resembles_it_is_in_the_catalog() -> None:
    assert [catalog.load_gpu(name).kernels_like for name in ("mi325x", "mi355x")] == ["mi300x", "mi300x"]
