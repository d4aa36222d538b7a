"""`simserve lab`: the league, errors of servers and of kernels, and old spellings of what moved there."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.invoke import Outcome, invoke
from tests.cli.test_validate import HEAD, RUN, TWICE
from tests.lab.test_settings import ROW


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["calibrate", "h100-sxm", "--measure", "mine.csv"], "--measure: has moved; run simserve lab measure GPU"),
        (["calibrate", "h100-sxm", "--models=qwen3-8b"], "--models: has moved; run simserve lab measure GPU TABLE.csv"),
        (["calibrate", "--minutes", 5], "--minutes: has moved; run simserve lab measure GPU TABLE.csv"),
        (["calibrate", "mi300x", "--serving-runs", "a.csv"], "--serving-runs: has moved; run simserve lab card GPU"),
        (["calibrate", "--public", ".", "--most", 3], "--public: has moved; run simserve lab server-errors FOLDER"),
        (["calibrate", "h100-sxm", "--most", 3], "--most: has moved; run simserve lab server-errors FOLDER"),
        (["validate", "--public", "."], "--public: has moved; run simserve lab league FOLDER"),
        (["validate", "runs.csv", "--most=3"], "--most: has moved; run simserve lab league FOLDER"),
        (["validate", "--kernels", "h100-sxm/vllm"], "--kernels: has moved; run simserve lab kernels CALIBRATION"),
    ],
)
def test_an_option_that_moved_names_the_command_that_replaces_it(arguments: list[object], sentence: str) -> None:
    outcome = invoke(*arguments)
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert sentence in " ".join(outcome.err.split())


@pytest.mark.parametrize("command", ["calibrate", "validate"])
def test_help_shows_no_option_that_moved(command: str) -> None:
    from simserve.cli.lab import MOVED

    shown = invoke(command, "--help").out.split()
    assert "--scenario" in shown
    assert not MOVED[command].keys() & set(shown)


def five_groups(folder: Path) -> Path:
    """Write a folder of public runs, of five groups of servers."""
    others: list[dict[str, Any]] = [
        {"framework": engine, "hardware": gpu, "model": model, "precision": precision, "image": ""}
        for engine, gpu, model, precision in (
            ("vllm", "h200", "gptoss", "fp4"),
            ("vllm", "b200", "gptoss", "fp4"),
            ("trt", "h200", "gptoss", "fp4"),
            ("trt", "h200", "dsr1", "fp8"),
            ("sglang", "h200", "dsr1", "fp8"),
        )
    ]
    (folder / "serving").mkdir()
    alike = {"disagg": "False", "spec": "none", "concurrency": 1, "isl": 64, "osl": 8}
    lines = [",".join(map(str, (ROW | alike | each).values())) for each in others]
    (folder / "serving" / "runs.csv").write_text("\n".join([",".join(map(str, ROW)), *lines]))
    return folder


def test_errors_between_servers_are_written_to_the_same_bytes(tmp_path: Path) -> None:
    folder = five_groups(tmp_path)
    first, second = (
        invoke("lab", "server-errors", folder, "--most", 1, "--out", tmp_path / name) for name in ("a", "b")
    )
    assert (first.exit_code, second.exit_code) == (0, 0), first.err
    written = [(tmp_path / name / "server_errors.json").read_bytes() for name in ("a", "b")]
    assert written[0] == written[1]
    data = json.loads(written[0])
    assert data["made"]["files"][0]["file"] == "runs.csv"
    assert {metric: (fit["n_runs"], fit["n_groups"]) for metric, fit in data["metrics"].items()} == dict.fromkeys(
        ("tpot_s", "ttft_s", "e2e_s"), (5, 5)
    )
    assert first.out.splitlines()[0].split()[:4] == ["runs", "groups", "server", "experts"]


def public(folder: Path, *more: object) -> Outcome:
    (folder / "serving").mkdir(exist_ok=True)
    (folder / "serving" / "h100_serving.csv").write_text(
        HEAD + RUN + RUN.replace("vllm,0.12.0", "sglang,0.5.8") + TWICE
    )
    (folder / "serving" / "mine.csv").write_text(HEAD + RUN)
    return invoke("lab", "league", folder, "--requests-per-client", 2, *more)


def test_public_runs_are_compared_by_set_beside_peers(tmp_path: Path) -> None:
    outcome = public(tmp_path, "--json")
    assert outcome.exit_code == 0, outcome.err
    result = json.loads(outcome.out)
    assert [(each["file"], each["engine"], each["n_runs"], each["in_sample"]) for each in result["sets"]] == [
        ("h100_serving.csv", "sglang", 1, "yes"),
        ("h100_serving.csv", "vllm", 2, "yes"),
        ("mine.csv", "vllm", 1, "no"),
    ]
    wording = public(tmp_path, "--page", tmp_path / "page.html")
    assert wording.out.startswith("Not in-sample (1 run): errors TPOT ")
    (line,) = (line for line in wording.out.splitlines() if line.split()[:3] == ["h100_serving", "vllm", "0.12.0"])
    assert f"{result['sets'][1]['errors']['tpot']['mape_frac']:.1%}" in line
    assert line.endswith("yes        best published calculator: 10.9% / 37% / –")
    assert "skipped: logs/runs.json is not there" in wording.err
    assert "league" in (tmp_path / "page.html").read_text()


def test_at_most_so_many_public_runs_of_a_set_are_replayed(tmp_path: Path) -> None:
    result = json.loads(public(tmp_path, "--most", 1, "--json").out)
    assert [(each["n_runs"], each["n_in_folder"]) for each in result["sets"]] == [(1, 1), (1, 2), (1, 1)]


def test_a_folder_without_public_runs_is_2(tmp_path: Path) -> None:
    empty = invoke("lab", "league", tmp_path)
    assert (empty.exit_code, empty.out) == (2, "")
    assert "must hold public runs as serving/h100_serving.csv" in empty.err


def test_kernels_are_told_by_operation() -> None:
    result = json.loads(invoke("lab", "kernels", "h100-sxm/vllm", "--json").out)
    errors = {(each["op"], each["dtype"]): each["mape_frac"] for each in result["held_out"]}
    wording = invoke("lab", "kernels", "h100-sxm/vllm").out
    (line,) = (line for line in wording.splitlines() if line.split()[:2] == ["gemm", "bf16"])
    assert line.split()[2] == f"{errors['gemm', 'bf16']:.1%}"
    assert 0 < errors["gemm", "bf16"] < 0.06  # the bar
    assert max(errors["gemm", "fp8"], errors["prefill_attention", "bf16"], errors["decode_attention", "bf16"]) < 0.1


def test_kernels_that_are_not_there_are_2() -> None:
    outcome = invoke("lab", "kernels", "h100-sxm/nobody")
    assert outcome.exit_code == 2
    assert "h100-sxm/nobody: no such calibration; there are" in outcome.err
