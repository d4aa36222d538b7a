"""`simserve report`: the page again, from the tables."""

from pathlib import Path

import pytest

from simserve.tables.folder import KINDS, RUN, SWEEP
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario


def test_the_page_can_be_made_from_the_files_of_a_run_without_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    invoke("run", write_scenario(tmp_path), "--out", out, "--no-report")
    outcome = invoke("report", out)
    assert outcome.exit_code == 0
    assert outcome.out == f"{out / 'report.html'}\n"
    assert (out / "report.html").read_text().lstrip().lower().startswith("<!doctype html>")


def test_the_page_made_again_is_the_page_of_the_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    invoke("run", write_scenario(tmp_path, measure={"replays": 2}), "--out", out)
    first = (out / "report.html").read_text()
    assert invoke("report", out).exit_code == 0
    assert (out / "report.html").read_text() == first


def test_a_folder_without_results_is_2_and_untouched(tmp_path: Path) -> None:
    outcome = invoke("report", tmp_path)
    assert outcome.exit_code == 2
    assert str(tmp_path) in outcome.err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_2(tmp_path: Path) -> None:
    assert invoke("report", tmp_path / "nowhere").exit_code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("names", [kind.required_files for kind in KINDS if kind is not RUN] + [{SWEEP.journal}])
def test_the_folder_of_a_study_is_refused_by_its_command_and_untouched(tmp_path: Path, names: set[str]) -> None:
    name = next(kind.name for kind in KINDS if kind.files >= names and kind is not RUN)
    for file in names:
        (tmp_path / file).write_text("{}")
    outcome = invoke("report", tmp_path)
    rule = f"must be the folder of a run, got that of `simserve {name}`, which writes its own report.html"
    assert outcome.err == f"simserve: error: {tmp_path}: {rule}; name what `simserve run` wrote\n"
    assert outcome.exit_code == 2
    assert {file.name for file in tmp_path.iterdir()} == set(names)
