"""`--timeline` of run and report: a trace of chosen requests, whole or not at all."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario


def requests_of(path: Path) -> list[str]:
    """The tracks of requests, in their order."""
    progress: dict[str, Any] = json.loads(path.read_text())
    events = [event for event in progress["traceEvents"] if event["pid"] == 1 and event["name"] == "thread_name"]
    return [event["args"]["name"] for event in events]


def test_a_run_draws_the_chosen_requests_and_says_where(tmp_path: Path) -> None:
    drawn = tmp_path / "drawn.json"
    chosen = ("--timeline", drawn, "--timeline-requests", "3,1")
    outcome = invoke("run", write_scenario(tmp_path), "--out", tmp_path / "out", *chosen)
    assert outcome.exit_code == 0
    assert outcome.out.endswith(f"{drawn} (open it in ui.perfetto.dev)\n")
    assert requests_of(drawn) == ["Request 3", "Request 1"]


@pytest.mark.parametrize("steps", ["stretch", "full"])
def test_the_report_of_a_written_run_draws_it_too(tmp_path: Path, steps: str) -> None:
    first, again = tmp_path / "first.json", tmp_path / "again.json"
    out = ("--out", tmp_path / "out", "--no-report", "--steps", steps)
    invoke("run", write_scenario(tmp_path), *out, "--timeline", first, "--timeline-requests", "slowest:3")
    outcome = invoke("report", tmp_path / "out", "--timeline", again, "--timeline-requests", "slowest:3")
    assert outcome.exit_code == 0
    assert requests_of(again) == requests_of(first)
    if steps == "stretch":
        assert again.read_text() == first.read_text()


def test_a_run_that_writes_no_steps_draws_all_the_same_and_its_folder_cannot(tmp_path: Path) -> None:
    drawn, out = tmp_path / "drawn.json", tmp_path / "out"
    invoke("run", write_scenario(tmp_path), "--out", out, "--no-report", "--steps", "none", "--timeline", drawn)
    assert requests_of(drawn)
    drawn.unlink()
    outcome = invoke("report", out, "--timeline", drawn)
    assert outcome.exit_code == 2
    assert "run again without --steps none" in outcome.err
    assert not drawn.exists()
    assert not (out / "report.html").exists()


@pytest.mark.parametrize(
    ("timeline", "chosen", "text"),
    [
        ("nowhere/x.json", "slowest:20", "--timeline: must be in an existing folder, got {tmp}/nowhere/x.json"),
        ("", "slowest:20", "--timeline: must be a file, got the folder {tmp}"),
        ("out/x.json", "slowest:20", "--timeline: must not be in the folder of the results"),
        ("x.json", "slowest:0", "--timeline-requests: must be ids or slowest:N, got 'slowest:0'; try slowest:20"),
        ("x.json", "slowest", "--timeline-requests: must be ids or slowest:N, got 'slowest'"),
        ("x.json", " ,", "--timeline-requests: must be ids or slowest:N, got ' ,'"),
        ("x.json", "1,nobody", "--timeline-requests: must name requests of the run (ids go from 0 to "),
    ],
)
def test_what_cannot_be_drawn_is_2_and_nothing_is_written(
    tmp_path: Path, timeline: str, chosen: str, text: str
) -> None:
    scenario = write_scenario(tmp_path)
    (tmp_path / "out").mkdir()
    before = sorted(tmp_path.rglob("*"))
    flags = ("--timeline", tmp_path / timeline, "--timeline-requests", chosen)
    outcome = invoke("run", scenario, "--out", tmp_path / "out", *flags)
    assert outcome.exit_code == 2
    assert text.format(tmp=tmp_path) in outcome.err
    assert sorted(tmp_path.rglob("*")) == before


def test_requests_without_a_trace_are_refused(tmp_path: Path) -> None:
    outcome = invoke("run", write_scenario(tmp_path), "--out", tmp_path / "out", "--timeline-requests", "1")
    assert outcome.exit_code == 2
    assert "--timeline-requests: needs --timeline, got 1 alone; add --timeline FILE" in outcome.err
    assert not (tmp_path / "out").exists()
