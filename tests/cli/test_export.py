"""`simserve export`: a workbook or CSV files, whole or not at all."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from openpyxl import load_workbook

from simserve.tables.files import json_text
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario
from tests.report.answers_by_hand import capacity_json, plan_json


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    pool = {"name": "=1+1", "role": "both", "replicas": 1, "parallel": {"tensor": 1}}
    scenario = write_scenario(folder, cluster={"router": "round_robin", "pools": [pool]})
    assert invoke("run", scenario, "--out", folder / "run", "--no-report").exit_code == 0
    return folder / "run"


@pytest.fixture
def capacity(tmp_path: Path) -> Path:
    folder = tmp_path / "capacity"
    folder.mkdir()
    (folder / "capacity.json").write_text(json_text(capacity_json()))
    return folder


def test_several_folders_become_one_workbook(run: Path, capacity: Path, tmp_path: Path) -> None:
    out = tmp_path / "book.xlsx"
    outcome = invoke("export", run, capacity, "--xlsx", out)
    assert (outcome.exit_code, outcome.err) == (0, "")
    assert outcome.out == f"{out}: Summary, Percentiles, Time series, Capacity curve, Cost, Growth\n"
    book = load_workbook(out, data_only=True)
    assert (book["Time series"]["B4"].value, book["Time series"]["B4"].data_type) == ("=1+1", "s")


def test_csv_files_fill_a_folder_and_replace_those_of_before(run: Path, capacity: Path, tmp_path: Path) -> None:
    out = tmp_path / "sheets"
    assert invoke("export", run, "--csv", out).exit_code == 0
    assert "percentiles.csv" in os.listdir(out)
    outcome = invoke("export", capacity, "--csv", out)
    assert outcome.out == f"{out}/: summary.csv, capacity_curve.csv, cost.csv, growth.csv\n"
    assert sorted(os.listdir(out)) == ["capacity_curve.csv", "cost.csv", "growth.csv", "summary.csv"]


def test_both_at_once(run: Path, tmp_path: Path) -> None:
    outcome = invoke("export", run, "--xlsx", tmp_path / "a.xlsx", "--csv", tmp_path / "a")
    assert outcome.exit_code == 0
    assert sorted(os.listdir(tmp_path)) == ["a", "a.xlsx"]


def test_without_a_place_to_write_to_it_is_refused(run: Path) -> None:
    outcome = invoke("export", run)
    assert outcome.exit_code == 2
    assert "give --xlsx FILE, --csv FOLDER, or both" in outcome.err


def test_a_folder_with_strangers_is_refused_and_untouched(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.csv").write_text("a")
    outcome = invoke("export", run, "--csv", tmp_path / "mine", "--xlsx", tmp_path / "a.xlsx")
    assert outcome.exit_code == 2
    assert "must be empty or hold only an earlier result, got thesis.csv; choose another --csv" in outcome.err
    assert sorted(os.listdir(tmp_path)) == ["mine"]
    assert os.listdir(tmp_path / "mine") == ["thesis.csv"]


def test_no_stranger_is_put_among_the_files_of_a_result(run: Path) -> None:
    before = sorted(os.listdir(run))
    outcome = invoke("export", run, "--xlsx", run / "book.xlsx")
    assert outcome.exit_code == 2
    assert "must not lie among the files of simserve run" in outcome.err
    assert invoke("export", run, "--csv", run).exit_code == 2
    assert sorted(os.listdir(run)) == before


def test_a_plan_may_have_its_workbook_beside_it(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json_text(plan_json()))
    assert invoke("export", tmp_path, "--xlsx", tmp_path / "plan.xlsx").exit_code == 0


def test_a_workbook_goes_beside_other_files_that_happen_to_be_called_like_an_answer(run: Path, tmp_path: Path) -> None:
    (tmp_path / "capacity.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    assert invoke("export", run, "--xlsx", tmp_path / "capacity.xlsx").exit_code == 0


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("book.xls", "book.xls: must end in .xlsx, got book.xls"),
        ("nowhere/book.xlsx", "must be in a folder, got no folder"),
        ("folder.xlsx", "folder.xlsx: must be a file, got a folder"),
    ],
)
def test_a_place_where_no_workbook_can_be_is_refused(run: Path, tmp_path: Path, place: str, sentence: str) -> None:
    (tmp_path / "folder.xlsx").mkdir()
    outcome = invoke("export", run, "--xlsx", tmp_path / place)
    assert outcome.exit_code == 2
    assert sentence in outcome.err
    assert os.listdir(tmp_path) == ["folder.xlsx"]


def test_half_a_result_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    half = tmp_path / "half"
    half.mkdir()
    (half / "summary.json").write_text("{}")
    outcome = invoke("export", half, "--xlsx", tmp_path / "a.xlsx", "--csv", tmp_path / "a")
    assert outcome.exit_code == 2
    assert outcome.err.startswith(f"simserve: error: {half}: must hold requests.parquet and summary.json")
    assert os.listdir(tmp_path) == ["half"]


def test_a_full_disk_is_said_and_leaves_what_was_there(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.xlsx"
    out.write_text("earlier")
    program = "import sys\nfrom simserve.cli.main import execute\nsys.exit(execute(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, "export", str(run), "--xlsx", str(out)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert f"{out}: must be writable, got File too large" in done.stderr
    assert out.read_text() == "earlier"
    assert os.listdir(tmp_path) == ["a.xlsx"]
