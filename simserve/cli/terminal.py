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
    from simserve.simulation import Progress


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
    """One line on stderr that is redrawn."""

    def __init__(self) -> None:
        self._started_at_s = time.monotonic()

    def draw(self, progress: "Progress") -> None:
        """Show the progress of the run."""
        self.show(progress_line(progress, time.monotonic() - self._started_at_s))

    def show(self, line: str) -> None:
        """Replace the line, cut to the terminal's width; an empty text erases it."""
        sys.stderr.write("\r" + line[: shutil.get_terminal_size().columns - 1] + "\x1b[K")
        sys.stderr.flush()


@contextmanager
def progress_bar(is_wanted: bool = True) -> Iterator[ProgressBar | None]:
    """Show a bar while the block runs and erase it at the end; None without a terminal."""
    if not is_wanted or not sys.stderr.isatty():
        yield None
        return
    bar = ProgressBar()
    try:
        yield bar
    finally:
        bar.show("")


def progress_line(progress: "Progress", wall_s: float) -> str:
    """Format share done, simulated time, speed and time left in one line."""
    speed = f"{progress.n_done / max(wall_s, 1e-9):,.0f} requests/s"
    simulated = f"{progress.sim_s:,.1f} s simulated"
    if not progress.n_total:
        return f"{progress.n_done:,} requests  {simulated}  {speed}"
    done_frac = min(1.0, progress.n_done / progress.n_total)
    full = "#" * int(20 * done_frac)
    left = f"{wall_s * (1 - done_frac) / done_frac:,.0f} s left" if done_frac else "starting"
    return f"[{full:.<20}] {done_frac:4.0%}  {simulated}  {speed}  {left}"


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
