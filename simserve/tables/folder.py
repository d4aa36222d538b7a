"""Folder: a result is written beside its place and swapped in whole; what was there before stays until then."""

import errno
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from simserve.errors import OutputError
from simserve.tables.kinds import KINDS, RUN, Kind


@contextmanager
def result_folder(directory: Path, kind: Kind = RUN) -> Iterator[Path]:
    """An empty folder to fill; when the block ends well, it replaces `directory`, otherwise it is gone.

    Raises OutputError if `directory` holds anything but an earlier result of the same kind, or cannot be written.
    """
    check_folder(directory, kind)
    place = Path(os.path.realpath(directory))  # Path.resolve raises where links go in circles
    made: list[Path] = []
    extra = place.with_name(f".{place.name}.{secrets.token_hex(4)}.partial")
    try:
        with _plain_error(directory, kind):
            _make_parents(place, made)
            made.append(extra)
            extra.mkdir()
            yield extra
            with uninterrupted():
                _swap(extra, place)
                made.clear()
    finally:
        with uninterrupted():
            _remove(made)


def check_folder(directory: Path, kind: Kind = RUN) -> None:
    """Raises OutputError unless `directory` can be made, or is empty, or an earlier result and nothing else."""
    with _plain_error(directory, kind):
        if not directory.exists():
            _check_writable(next(parent for parent in directory.absolute().parents if parent.exists()))
            return
        if not directory.is_dir():
            raise OutputError(f"{directory}: must be a folder, got a file; choose another {kind.option}")
        names = {entry.name for entry in directory.iterdir()}
    strangers = sorted(names - kind.files)
    if strangers:
        others = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        raise OutputError(
            f"{directory}: must be empty or hold only an earlier result, got {strangers[0]}{others}; "
            f"choose another {kind.option}"
        )
    if names and not names >= kind.required_files:
        raise OutputError(
            f"{directory}: must be empty or hold an earlier result, got {', '.join(sorted(names))} "
            f"without {' and '.join(sorted(kind.required_files - names))}; choose another {kind.option}"
        )


def kind_of(directory: Path) -> Kind:
    """Which command wrote the folder. Raises OutputError where none did, or not to its end."""
    if not directory.is_dir():
        raise OutputError(f"{directory}: no such folder; name one that simserve wrote")
    names = {entry.name for entry in directory.iterdir()}
    for kind in KINDS:
        if names >= kind.required_files:
            return kind
    required_files = ", or ".join(" and ".join(sorted(kind.required_files)) for kind in KINDS)
    raise OutputError(
        f"{directory}: must hold {required_files}, got {', '.join(sorted(names)) or 'nothing'}; name a result"
    )


def _check_writable(parent: Path) -> None:
    """Raises OSError unless a folder can be made in there."""
    reason = errno.ENOTDIR if not parent.is_dir() else errno.EACCES
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise OSError(reason, os.strerror(reason))


@contextmanager
def _plain_error(directory: Path, kind: Kind) -> Iterator[None]:
    """Turn what the operating system refuses into a message that says what to do."""
    try:
        yield
    except OSError as error:
        text = os.strerror(error.errno) if error.errno else str(error)
        raise OutputError(
            f"{directory}: must be writable, got {text}; free space there or choose another {kind.option} "
            "(nothing was written, an earlier result is as it was)"
        ) from error


def _make_parents(place: Path, made: list[Path]) -> None:
    """Make the folders above; those that are new go into `made`."""
    missing = [parent for parent in place.parents if not parent.exists()]
    for parent in reversed(missing):
        made.append(parent)
        parent.mkdir()


def _swap(extra: Path, place: Path) -> None:
    """Put the new result in its place; if that fails, the earlier one is back where it was."""
    if not place.exists():
        os.rename(extra, place)
        return
    earlier = extra.with_suffix(".earlier")
    os.rename(place, earlier)
    try:
        os.rename(extra, place)
    except OSError:
        os.rename(earlier, place)
        raise
    shutil.rmtree(earlier, ignore_errors=True)


def _remove(made: list[Path]) -> None:
    """Take away what an unfinished result has left: its own folder, and new folders above it that are empty."""
    for path in reversed(made):
        if path.suffix == ".partial":
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.rmdir()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold a Ctrl-C back until the block is over; signals reach the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[Any, ...]] = []
    before = signal.signal(signal.SIGINT, lambda *what: held.append(what))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held and callable(before):
            before(*held[0])
