"""Journal: finished runs of a sweep as lines of `sweep.jsonl`, each synced to disk at once.

A torn line of an interrupted sweep is dropped and its run repeated, so no finished run is lost or repeated.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from simserve import __version__
from simserve.errors import OutputError
from simserve.input_files import parse_json
from simserve.interruptions import uninterrupted
from simserve.scenario import Scenario
from simserve.study.sweep.run import Row
from simserve.tables.files import plain

NAME = "sweep.jsonl"


def key_of(scenario: Scenario, seed: int) -> str:
    """Return the key of a run: everything that can change its row."""
    return f"{scenario.model_copy(update={'seed': seed}).digest}/{seed}/{__version__}"


class Journal:
    """Finished runs of a sweep, on disk."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self.rows: dict[str, Row] = {}
        """Rows by the key of the run."""
        self._read()

    def add(self, key: str, row: Row) -> None:
        """Write a run, also during Ctrl-C; raise OutputError and keep earlier runs."""
        with uninterrupted():
            self._add(key, row)

    def _add(self, key: str, row: Row) -> None:
        line = json.dumps({"key": key, "row": plain(row)}, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        end = self._file.seek(0, os.SEEK_END)
        try:
            self._write(line.encode() + b"\n")
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(end)
            raise _cannot(self._path, error) from error
        self.rows[key] = row

    def _write(self, line: bytes) -> None:
        """Write the whole line; a nearly full disk accepts part of it before it fails."""
        while line:
            line = line[self._file.write(line) :]

    def _read(self) -> None:
        """Read whole lines, and cut off a torn one."""
        self._file.seek(0)
        whole, newline, _ = self._file.read().rpartition(b"\n")  # read at once: unbuffered, a line is a call a byte
        for line in whole.split(b"\n"):
            self._take(line)
        self._file.truncate(len(whole) + len(newline))

    def _take(self, line: bytes) -> None:
        try:
            entry = parse_json(line)
            self.rows[entry["key"]] = dict(entry["row"])
        except (ValueError, TypeError, KeyError):
            return  # foreign or damaged line: that run is repeated


@contextmanager
def open_journal(directory: Path) -> Iterator[Journal]:
    """Open and lock the journal of a folder, which is made if need be; raise OutputError."""
    path = directory / NAME
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Unbuffered: a failed write must not be repeated when the file is closed.
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
    except OSError as error:
        raise _cannot(path, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            rule = "another sweep is writing there now"
            raise OutputError(f"{directory}: {rule}; wait for it, or choose another --out") from None
        yield Journal(file, path)


def _cannot(path: Path, error: OSError) -> OutputError:
    text = os.strerror(error.errno) if error.errno else str(error)
    remedy = "free space there, or choose another --out"
    return OutputError(f"{path}: must be writable, got {text}; {remedy}")
