"""Terminal output of all commands: results to stdout, messages to stderr, tables, and the progress bar."""

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

if TYPE_CHECKING:
    from simserve.metrics.answers.struct import StudyAnswer
    from simserve.report.document import Document
    from simserve.tables.folder import Kind

LINE_EVERY_S = 10.0
"""Time between two lines of progress where stderr is no terminal."""

SETTING = "SIMSERVE_PROGRESS"
"""Environment variable that leaves progress out where it is `off`."""


class Mode(NamedTuple):
    """What `-q` and `--open` ask of a command."""

    quiet: bool = False
    """Print errors and JSON alone."""
    opens: bool = False
    """Open the page of the answer."""


MODE: ContextVar[Mode] = ContextVar("mode", default=Mode())  # noqa: B039 (immutable)


@contextmanager
def mode(**changes: bool) -> Iterator[None]:
    """Work in a mode until the command ends."""
    token = MODE.set(MODE.get()._replace(**changes))
    try:
        yield
    finally:
        MODE.reset(token)


def result(text: str) -> None:
    """Print a result to stdout."""
    _write(sys.stdout, text)


def result_json(value: Any) -> None:
    """Print a result to stdout as JSON, as in the output files."""
    from simserve.tables.files import json_text

    result(json_text(value).rstrip())


def message(text: str) -> None:
    """Print a message to stderr."""
    if not MODE.get().quiet:
        _say(text)


def _say(text: str) -> None:
    columns, line = width(sys.stderr), f"simserve: {text}"
    if columns is not None:
        from simserve.report.text import wrapped

        line = wrapped(line, columns, "  ")
    _write(sys.stderr, line)


def errors(text: str) -> None:
    """Print input errors to stderr, one per line."""
    for line in text.splitlines():
        _say(f"error: {line}")


def warnings(texts: Iterable[str]) -> None:
    """Print warnings to stderr."""
    for text in texts:
        message(f"warning: {text}")


def answer(
    shown: "Document", facts: Mapping[str, Any], folder: Path | None = None, *, as_json: bool, more: Sequence[str] = ()
) -> None:
    """Print an answer as JSON, or as its document tells it; its warnings to stderr. Open its page where asked to.

    folder: the folder with its page, if it was written. more: what else was written.
    """
    from simserve.report.text import document_text

    if as_json:
        result_json(facts)
    elif not MODE.get().quiet:
        files = [*([f"{folder / 'report.html'} (all files: {folder}/)"] if folder else []), *more]
        text = document_text(shown, width(sys.stdout))
        result("\n".join((f"{text}\n", *files)) if files else text)
    warnings(shown.warnings)
    if MODE.get().opens:
        _open(shown, folder)


def write_study(
    folder: Path, kind: "Kind", study: "StudyAnswer", document: "Document", more: Mapping[str, str | bytes] = {}
) -> None:
    """Write the folder of a study, whole or not at all: its answer, its page, its rows if it has any, and more files.
    Raises OutputError if the folder holds something else, or cannot be written."""
    from simserve.metrics.result_folder import ANSWERS
    from simserve.report.html import page
    from simserve.tables.files import json_text
    from simserve.tables.folder import result_folder

    files = {ANSWERS[kind][0]: json_text(study.facts()), "report.html": page(document), **more}
    rows = study.rows if f"{kind.name}.parquet" in kind.files else None
    with result_folder(folder, kind) as place:
        for name, content in files.items():
            (place / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        if rows is not None:
            from simserve.tables.parquet import write_table  # late import: pyarrow

            write_table(place / rows.name, rows.fields, rows.columns)


def _open(document: "Document", folder: Path | None) -> None:
    """Open the page of an answer in a browser; one that was not written is made for this."""
    import tempfile
    import webbrowser

    from simserve.report.html import page
    from simserve.tables.files import replace_text

    place = (folder or Path(tempfile.mkdtemp(prefix="simserve-"))) / "report.html"
    if folder is None:
        replace_text(place, page(document))
    if not webbrowser.open(place.resolve().as_uri()):
        message(f"no browser could be opened; the page is {place}")


def width(stream: TextIO) -> int | None:
    """Return the columns of the terminal that a stream goes to; None for a file or a pipe."""
    return max(40, shutil.get_terminal_size().columns) if stream.isatty() else None


def table(rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Format rows of cells as aligned lines that fit the terminal."""
    from simserve.report.text import table_text

    return table_text(rows, indent, width=width(sys.stdout))


class ProgressBar:
    """How far a command is: a line of a terminal that is redrawn, or a line every LINE_EVERY_S of a file."""

    def __init__(self) -> None:
        self._is_quiet = MODE.get().quiet or os.environ.get(SETTING) == "off"
        self._is_drawn = sys.stderr.isatty()
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
def progress_bar() -> Iterator[ProgressBar]:
    """Show the runs of the block, and erase the line at the end."""
    from simserve.study.progress import StudyProgress, shown_by

    bar = ProgressBar()
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
        give_up(stream)
    except OSError as error:
        from simserve.errors import OutputError

        give_up(stream)
        if stream is sys.stdout:
            raise OutputError(f"stdout: cannot be written: {error.strerror}; free space there") from error


def give_up(stream: TextIO) -> None:
    """Write nothing more: what is buffered would fail again at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
