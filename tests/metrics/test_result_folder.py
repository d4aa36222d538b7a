"""What commands left in folders, read back; what is no result, or half of one, is refused with what it lacks."""

import shutil
from pathlib import Path

import pytest

from simserve.errors import OutputError
from simserve.metrics.result_folder import read_result_folders
from simserve.tables.files import json_text
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario
from tests.report.answers_by_hand import (
    as_json,
    capacity_json,
    check_answer,
    comparison_json,
    plan_json,
    sweep_json,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    assert invoke("run", write_scenario(folder), "--out", folder / "run", "--no-report").exit_code == 0
    return folder / "run"


def write(folder: Path, name: str, answer: object) -> Path:
    folder.mkdir()
    (folder / name).write_text(json_text(answer))
    return folder


def test_a_run_comes_with_its_time_series(run: Path) -> None:
    (result,) = read_result_folders([run])
    assert (result.command, result.label, result.title) == ("run", "tiny", "Run tiny")
    assert result.rows is not None and len(result.rows["start_s"]) > 0


def test_each_command_is_known_by_its_file(tmp_path: Path) -> None:
    folders = [
        write(tmp_path / "a", "capacity.json", capacity_json()),
        write(tmp_path / "b", "comparison.json", comparison_json()),
        write(tmp_path / "c", "plan.json", plan_json()),
        write(tmp_path / "d", "sweep.json", sweep_json()),
        write(tmp_path / "e", "check.json", as_json(check_answer())),
    ]
    (tmp_path / "d" / "sweep.parquet").touch()  # which is written last
    result = read_result_folders(folders)
    assert [each.title for each in result] == [
        "Capacity chat",
        "Compare =new against old",
        "Plan chat",
        "Sweep chat",
        "Check chat",
    ]


def test_two_results_of_one_scenario_are_told_apart_by_their_folders(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "again")
    assert [each.label for each in read_result_folders([run, tmp_path / "again"])] == [
        str(run),
        str(tmp_path / "again"),
    ]


def test_the_same_folder_twice_is_refused(run: Path) -> None:
    with pytest.raises(OutputError, match=r"run: must be named once, got it twice; leave one out"):
        read_result_folders([run, run.parent / "." / "run"])


@pytest.mark.parametrize("name", ["summary.json", "requests.parquet", "timeseries.parquet"])
def test_half_a_run_says_what_is_missing(run: Path, tmp_path: Path, name: str) -> None:
    half = tmp_path / "half"
    shutil.copytree(run, half)
    (half / name).unlink()
    with pytest.raises(OutputError, match=name):
        read_result_folders([half])


def test_a_file_cut_in_half_is_refused(run: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(run, half)
    (half / "summary.json").write_bytes((run / "summary.json").read_bytes()[:1000])
    with pytest.raises(OutputError, match=r"summary.json: cannot be read as JSON"):
        read_result_folders([half])
    shutil.copy(run / "summary.json", half)
    (half / "timeseries.parquet").write_bytes((run / "timeseries.parquet").read_bytes()[:1000])
    with pytest.raises(OutputError, match=r"timeseries.parquet: cannot be read as parquet"):
        read_result_folders([half])


def test_an_answer_without_its_keys_is_refused_by_the_first(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", "capacity.json", {"scenario": {"name": "chat"}, "slo": {}})
    with pytest.raises(OutputError, match=r"capacity.json: must have 'asked', got a mapping; run the"):
        read_result_folders([folder])


def test_an_answer_that_names_a_limit_which_no_scenario_has_is_refused(tmp_path: Path) -> None:
    edited = capacity_json()["answer"] | {"fails_first": '"ttft_s"'}
    folder = write(tmp_path / "a", "capacity.json", capacity_json() | {"answer": edited})
    with pytest.raises(OutputError, match=r"capacity.json: answer.fails_first: must be one of queue, ttft_s, .*; run"):
        read_result_folders([folder])


def test_a_folder_of_something_else_is_refused_with_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"must hold requests.parquet and summary.json, or capacity.json, or"):
        read_result_folders([tmp_path])
    with pytest.raises(OutputError, match="no such folder"):
        read_result_folders([tmp_path / "nowhere"])
