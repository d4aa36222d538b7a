"""What reaches the terminal: tables, the progress bar, and streams that cannot take it."""

import io
import os
import subprocess
import sys
import time
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simserve import load_scenario
from simserve.cli import terminal
from simserve.study.progress import StudyProgress, counted, enter, shown_by
from simserve.study.run_seeds import each_run
from tests.cli.scenarios import write_scenario


def progress(**changes: Any) -> Any:
    return SimpleNamespace(**({"n_done": 250, "n_total": 1000, "sim_s": 31.25} | changes))


def test_a_table_aligns_words_to_the_left_and_figures_to_the_right() -> None:
    rows = [("", "p50", "note"), ("TTFT", "9 ms", "x"), ("E2E", "1,234 ms", "yz")]
    assert terminal.table(rows) == "             p50  note\n  TTFT      9 ms  x\n  E2E   1,234 ms  yz"


def test_a_table_of_ragged_rows_is_filled_up() -> None:
    assert terminal.table([("a", "b"), ("c",)]) == "  a  b\n  c"


def test_an_empty_table_is_nothing() -> None:
    assert terminal.table([]) == ""


@pytest.fixture(autouse=True)
def progress_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIMSERVE_PROGRESS")


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_a_run_tells_share_simulated_time_speed_and_time_left() -> None:
    lines: list[str] = []
    clock = iter([0.0, 2.0, 2.0, 2.0, 2.0])
    shown = StudyProgress(lines.append, lambda: next(clock))
    for changes in ({}, {"n_done": 0}, {"n_total": None}, {"n_done": 1001}):
        shown.of_run(progress(**changes))
    assert lines == [
        "25%, 31.2 s simulated, 125 requests/s, 6 s left",
        "0%, 31.2 s simulated, 0 requests/s, starting",
        "31.2 s simulated, 125 requests/s",
        "100%, 31.2 s simulated, 500 requests/s, 0 s left",
    ]


def test_runs_of_all_rounds_are_counted_once_and_the_seconds_left_follow_the_last_ones() -> None:
    lines: list[str] = []
    clock = iter([0.0, *(10.0 * k for k in range(1, 5)), *(40.0 + k for k in range(1, 41))])
    with shown_by(StudyProgress(lines.append, lambda: next(clock))):
        enter("1.25 times the load")
        assert list(counted(iter("abcd"), 4)) == list("abcd")
        enter("1.5 times the load")
        assert sum(counted(range(40), 40)) == sum(range(40))
    assert lines[:4] == [
        "1.25 times the load",
        "0 of 4 runs (1.25 times the load)",
        "1 of 4 runs, 30 s left (1.25 times the load)",
        "2 of 4 runs, 20 s left (1.25 times the load)",
    ]
    assert lines[-2] == "43 of 44 runs, 1 s left (1.5 times the load)"
    assert lines[-1] == "44 of 44 runs (1.5 times the load)"
    assert list(counted("xy", 2)) == ["x", "y"]
    assert len(lines) == 1 + 5 + 1 + 41, "nothing is told outside"


def test_a_study_counts_each_of_its_runs(tmp_path: Path) -> None:
    lines: list[str] = []
    with shown_by(StudyProgress(lines.append)):
        scenario = load_scenario(write_scenario(tmp_path))
        each_run(attrgetter("sample"), [scenario, scenario], [1, 2, 3])
    assert lines[-1] == "6 of 6 runs"


def test_a_file_gets_a_line_every_ten_seconds_and_nothing_before(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now = io.StringIO(), [0.0]
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with terminal.progress_bar() as bar:
        for second in range(25):
            now[0] = float(second)
            bar.show(f"{second} of 25 runs")
    assert stream.getvalue() == "simserve: 10 of 25 runs\nsimserve: 20 of 25 runs\n"


@pytest.mark.parametrize("quiet", [True, False])
def test_quiet_shows_nothing_but_errors(quiet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = on_terminal(monkeypatch)
    monkeypatch.setenv("SIMSERVE_PROGRESS", "on" if quiet else "off")
    with terminal.mode(quiet=quiet), terminal.progress_bar() as bar:
        bar.show("1 of 2 runs")
        assert stream.getvalue() == ""
        terminal.warnings(["the queue grows"])
        terminal.errors("x: must be y")
    assert ("warning" in stream.getvalue()) is not quiet
    assert "simserve: error: x: must be y\n" in stream.getvalue()


def test_the_bar_erases_itself_and_never_wraps_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = on_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "30")
    with terminal.progress_bar() as bar:
        bar.show("24 of 60 runs, 41 s left (1.25 times the load)")
    assert stream.getvalue().endswith("\r\x1b[K")
    assert stream.getvalue().split("\r")[1].removesuffix("\x1b[K") == "24 of 60 runs, 41 s left (1.2"


def test_a_terminal_without_unicode_gets_question_marks_rather_than_an_error() -> None:
    program = "from simserve.cli import terminal; terminal.result('TTFT ≤ 1 s')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "TTFT ? 1 s\n"
    assert run.stderr == ""


def test_a_reader_that_goes_away_is_no_error() -> None:
    program = (
        "import sys; from simserve.cli import terminal\n"
        "for _ in range(100000): terminal.result('x' * 100)\n"
        "sys.stderr.write('done')"
    )
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.readline()
    writer.stdout.close()
    _, err = writer.communicate()
    assert (writer.returncode, err) == (0, b"done")


def test_json_is_strict(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.result_json({"p99": float("nan")})
    assert capsys.readouterr().out == '{\n  "p99": null\n}\n'
