"""Journal: finished runs of a study as lines of a file in its folder, each synced to disk at once.

A torn line of an interrupted study is dropped and its run repeated, so no finished run is lost or repeated. An earlier
answer stays beside its journal until the next one takes its place; a line of the journal says which runs it lacks.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Generic, Protocol, TypeVar

from simserve.errors import OutputError
from simserve.input_files import parse_json
from simserve.interruptions import uninterrupted
from simserve.tables.folder import OLDER, Kind
from simserve.tables.swap import is_same, lock, new_folders, unwritable


class JournalRow(Protocol):
    """A run of a study, which a line of the journal holds."""

    def facts(self) -> dict[str, Any]:
        """Return the run as JSON has it."""


R = TypeVar("R", bound=JournalRow)

Reader = Callable[[object], R]
"""Reads a row back. Raises ValueError for one without the names and types of a run of the study."""


class Journal(Generic[R]):
    """Finished runs of a study, on disk."""

    def __init__(self, file: BinaryIO, path: Path, kind: Kind, read: Reader[R]) -> None:
        self._file, self._path, self._kind, self._read_row = file, path, kind, read
        self.rows: dict[str, R] = {}
        """Rows by the key of the run."""
        self._unread: set[str] = set()
        is_answered = all((path.parent / name).exists() for name in kind.required_files)
        self._older = OLDER if OLDER not in self._read() and is_answered else b""

    @property
    def n_unread(self) -> int:
        """Return how many runs have only rows of another form, as of an earlier version: they count as not run."""
        return len(self._unread - self.rows.keys())

    def add(self, key: str, row: R) -> None:
        """Write a run, also during Ctrl-C; raise OutputError and keep earlier runs."""
        with uninterrupted():
            entry = {"key": key, "row": row.facts()}
            line = json.dumps(entry, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
            end = self._file.seek(0, os.SEEK_END)
            try:
                self._write(self._older + line.encode() + b"\n")
                os.fsync(self._file.fileno())
            except OSError as error:
                self._file.truncate(end)
                raise _cannot(self._path, self._kind, error) from error
            self._older = b""
            self.rows[key] = row

    def _write(self, line: bytes) -> None:
        """Write the whole line; a nearly full disk accepts part of it before it fails."""
        while line:
            line = line[self._file.write(line) :]

    def _read(self) -> bytes:
        """Read and return whole lines, and cut off a torn one."""
        self._file.seek(0)
        whole, newline, _ = self._file.read().rpartition(b"\n")  # read at once: unbuffered, a line is a call a byte
        for line in whole.split(b"\n"):
            with suppress(ValueError, TypeError, KeyError):  # a foreign or damaged line, or no row: its run is repeated
                entry = parse_json(line)
                key, row = entry["key"], entry["row"]
                self._unread.add(key)
                self.rows[key] = self._read_row(row)
        self._file.truncate(len(whole) + len(newline))
        return whole + newline


@contextmanager
def open_journal(directory: Path, kind: Kind, read: Reader[R]) -> Iterator[Journal[R]]:
    """Open and lock the journal of a folder; raise OutputError. Folder and journal are made, and removed if empty."""
    assert kind.journal is not None, "its runs are kept"
    path = directory / kind.journal
    with ExitStack() as stack:
        try:
            stack.enter_context(new_folders(directory))
            # Unbuffered: a failed write must not be repeated when the file is closed.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            file = stack.enter_context(os.fdopen(descriptor, "r+b", buffering=0))
            lock(descriptor)
            if not is_same(descriptor, path):  # its writer has just swapped or removed it
                raise BlockingIOError
        except BlockingIOError:
            rule = f"another {kind.name} is writing there now"
            raise OutputError(f"{directory}: {rule}; wait for it, or choose another {kind.option}") from None
        except OSError as error:
            raise _cannot(path, kind, error) from error
        try:
            yield Journal(file, path, kind, read)
        finally:
            if is_same(descriptor, path) and not os.fstat(descriptor).st_size:
                path.unlink()


def _cannot(path: Path, kind: Kind, error: OSError) -> OutputError:
    return unwritable(path, error, f"free space there, or choose another {kind.option}")
