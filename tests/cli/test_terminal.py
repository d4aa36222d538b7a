"""What reaches the terminal: tables, the progress bar, and streams that cannot take it."""

import io
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from simserve.cli import terminal


def progress(**changes: Any) -> Any:
    return SimpleNamespace(**({"n_done": 250, "n_total": 1000, "sim_s": 31.25} | changes))


def test_a_table_aligns_words_to_the_left_and_figures_to_the_right() -> None:
    rows = [("", "p50", "note"), ("TTFT", "9 ms", "x"), ("E2E", "1,234 ms", "yz")]
    assert terminal.table(rows) == "             p50  note\n  TTFT      9 ms  x\n  E2E   1,234 ms  yz"


def test_a_table_of_ragged_rows_is_filled_up() -> None:
    assert terminal.table([("a", "b"), ("c",)]) == "  a  b\n  c"


def test_an_empty_table_is_nothing() -> None:
    assert terminal.table([]) == ""


def test_the_progress_line_tells_share_simulated_time_speed_and_time_left() -> None:
    assert terminal.progress_line(progress(), wall_s=2.0) == (
        "[#####...............]  25%  31.2 s simulated  125 requests/s  6 s left"
    )


def test_the_progress_line_starts_without_a_guess() -> None:
    assert terminal.progress_line(progress(n_done=0), wall_s=0.0).endswith("starting")


def test_the_progress_line_of_an_open_end_counts_only() -> None:
    line = terminal.progress_line(progress(n_total=None), wall_s=2.0)
    assert line == "250 requests  31.2 s simulated  125 requests/s"


def test_more_done_than_expected_is_all_done() -> None:
    assert "100%" in terminal.progress_line(progress(n_done=1001), wall_s=1.0)


def test_there_is_no_bar_where_stderr_is_not_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with terminal.progress_bar() as bar:
        assert bar is None
    assert stream.getvalue() == ""


def test_the_bar_wipes_itself_away(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    with terminal.progress_bar() as bar:
        assert bar is not None
        bar.draw(progress())
    assert "25%" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_the_bar_never_wraps_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "30")
    with terminal.progress_bar() as bar:
        assert bar is not None
        bar.draw(progress())
    drawn = stream.getvalue().split("\r")[1].removesuffix("\x1b[K")
    assert len(drawn) == 29


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
