"""Terminal output of all commands: results to stdout, messages to stderr, tables, and the progress bar."""

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from simserve.report.document import Document

LINE_EVERY_S = 10.0
"""Time between two lines of progress where stderr is no terminal."""

SETTING = "SIMSERVE_PROGRESS"
"""Environment variable that leaves progress out where it is `off`."""


def result(text: str) -> None:
    """Print a result to stdout."""
    _write(sys.stdout, text)


def result_json(value: Any) -> None:
    """Print a result to stdout as JSON, as in the output files."""
    from simserve.tables.files import json_text

    result(json_text(value).rstrip())


def message(text: str) -> None:
    """Print a message to stderr."""
    columns, line = width(sys.stderr), f"simserve: {text}"
    if columns is not None:
        from simserve.report.text import wrapped

        line = wrapped(line, columns, "  ")
    _write(sys.stderr, line)


def errors(text: str) -> None:
    """Print input errors to stderr, one per line."""
    for line in text.splitlines():
        message(f"error: {line}")


def warnings(texts: Iterable[str]) -> None:
    """Print warnings to stderr."""
    for text in texts:
        message(f"warning: {text}")


def answer(
    document: "Document", facts: Mapping[str, Any], where: str = "", *, as_json: bool, quiet: bool = False
) -> None:
    """Print an answer as JSON, or as its document tells it and where the files are; its warnings to stderr.

    quiet: nothing but JSON.
    """
    from simserve.report.text import document_text

    if as_json:
        result_json(facts)
    elif not quiet:
        text = document_text(document, width(sys.stdout))
        result(f"{text}\n\n{where}" if where else text)
    if not quiet:
        warnings(document.warnings)


def width(stream: TextIO) -> int | None:
    """Return the columns of the terminal that a stream goes to; None for a file or a pipe."""
    return max(40, shutil.get_terminal_size().columns) if stream.isatty() else None


def table(rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Format rows of cells as aligned lines that fit the terminal."""
    from simserve.report.text import table_text

    return table_text(rows, indent, width=width(sys.stdout))


def place_of(directory: Path) -> str:
    """Return where the page of a command and its other files are."""
    return f"{directory / 'report.html'} (all files: {directory}/)"


class ProgressBar:
    """How far a command is: a line of a terminal that is redrawn, or a line every LINE_EVERY_S of a file."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_quiet, self._is_drawn = is_quiet or os.environ.get(SETTING) == "off", sys.stderr.isatty()
        self._told_s = time.monotonic()

    def show(self, line: str) -> None:
        """Show the line, cut to the terminal's width; an empty text erases it."""
        if self._is_quiet:
            return
        if self._is_drawn:
            sys.stderr.write("\r" + line[: shutil.get_terminal_size().columns - 1] + "\x1b[K")
            sys.stderr.flush()
        elif line and time.monotonic() - self._told_s >= LINE_EVERY_S:
            self._told_s = time.monotonic()
            message(line)


@contextmanager
def progress_bar(*, is_quiet: bool = False) -> Iterator[ProgressBar]:
    """Show the runs of the block, and erase the line at the end."""
    from simserve.study.progress import StudyProgress, shown_by

    bar = ProgressBar(is_quiet=is_quiet)
    try:
        with shown_by(StudyProgress(bar.show)):
            yield bar
    finally:
        bar.show("")


def _write(stream: TextIO, text: str) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), file=stream, flush=True)
    except BrokenPipeError:  # the reader closed the pipe (`| head`), which is no error
        _give_up(stream)
    except OSError as error:
        from simserve.errors import OutputError

        _give_up(stream)
        if stream is sys.stdout:
            raise OutputError(f"stdout: cannot be written: {error.strerror}; free space there") from error


def _give_up(stream: TextIO) -> None:
    """Write nothing more: what is buffered would fail again at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
