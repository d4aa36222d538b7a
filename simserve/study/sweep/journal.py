"""Journal: every finished run of a sweep as a line of `sweep.jsonl`, on the disk before the next is waited for.

A line is written whole or torn by what stopped the sweep; torn ones are dropped and run again, so nothing that is
finished is lost, and nothing is run twice.
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
from simserve.scenario import Scenario
from simserve.study.sweep.run import Row
from simserve.tables.files import plain
from simserve.tables.folder import uninterrupted

NAME = "sweep.jsonl"


def key_of(scenario: Scenario, seed: int) -> str:
    """What a run is known by: all that can change its row."""
    return f"{scenario.model_copy(update={'seed': seed}).digest}/{seed}/{__version__}"


class Journal:
    """The runs that are finished."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self.rows: dict[str, Row] = {}
        """Rows by the key of the run."""
        self._read()

    def add(self, key: str, row: Row) -> None:
        """Write a run down for good, even if Ctrl-C comes meanwhile. Raises OutputError; what was there stays."""
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
        """A disk that is nearly full takes a part, and refuses the rest."""
        while line:
            line = line[self._file.write(line) :]

    def _read(self) -> None:
        """Lines that are whole; the end of a torn one is cut off."""
        self._file.seek(0)
        whole, newline, _ = self._file.read().rpartition(b"\n")  # read at once: unbuffered, a line is a call a byte
        for line in whole.split(b"\n"):
            self._take(line)
        self._file.truncate(len(whole) + len(newline))

    def _take(self, line: bytes) -> None:
        try:
            result = json.loads(line)
            self.rows[result["key"]] = dict(result["row"])
        except (ValueError, TypeError, KeyError):
            return  # not a line of ours, or one that a failing disk has spoilt: that run is done again


@contextmanager
def open_journal(directory: Path) -> Iterator[Journal]:
    """Open the journal in a folder, made if needed, with a lock on it; raise OutputError if it is locked."""
    path = directory / NAME
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Unbuffered: what could not be written must not be tried again when the file is closed.
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
