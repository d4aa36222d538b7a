"""Swap: a new folder takes the place of an earlier one in one step, on disk, and by one writer at a time."""

import ctypes
import errno
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from simserve.errors import OutputError

AT_FDCWD = -100
RENAME_EXCHANGE = 2
"""Flag of renameat2 on Linux (linux/fs.h) and, as RENAME_SWAP, of renamex_np on macOS (sys/stdio.h)."""

CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
"""Errors of systems and file systems that do not exchange names."""


def swap(new: Path, place: Path) -> None:
    """Put a folder in its place and remove the one that was there. Raises OSError, and leaves the earlier one."""
    for path in (*new.iterdir(), new):  # on disk, so that a power cut after the swap does not lose the files
        _sync(path)
    if not place.exists():
        os.rename(new, place)
    else:
        with locked(place):  # its name will be that of the next writer's folder, until it is removed
            _replace(new, place)
    _sync(place.parent)


def _replace(new: Path, place: Path) -> None:
    if _exchange(new, place):
        shutil.rmtree(new, ignore_errors=True)
        return
    earlier = _earlier(place)
    os.rename(place, earlier)
    try:
        os.rename(new, place)
    except OSError:
        os.rename(earlier, place)
        raise
    shutil.rmtree(earlier, ignore_errors=True)


def recover(place: Path) -> None:
    """Restore the earlier result where a process was killed between the two renames of `swap`, and say so."""
    earlier = _earlier(place)
    if place.exists():
        shutil.rmtree(earlier, ignore_errors=True)
    elif earlier.exists():
        os.rename(earlier, place)
        logging.getLogger("simserve").warning("simserve: %s: restored the result of before an interrupted write", place)


@contextmanager
def partial_folder(place: Path) -> Iterator[Path | None]:
    """Make the folder in which the result of a place is written, and remove it; None while another process writes. A
    folder that a dead process has left there is removed."""
    partial = place.with_name(f".{place.name}.partial")
    while True:
        with suppress(FileExistsError):
            partial.mkdir()
        with ExitStack() as stack:
            try:
                held = stack.enter_context(locked(partial))
            except BlockingIOError:
                yield None
                return
            if is_same(held, partial):  # and not one that its writer has just moved or removed
                try:
                    _empty(partial)
                    yield partial
                finally:
                    if is_same(held, partial):
                        shutil.rmtree(partial, ignore_errors=True)
                return


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Open and lock a folder or file. Raises BlockingIOError where another process holds the lock."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        lock(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def lock(descriptor: int) -> None:
    """Lock an open folder or file until it is closed. Raises BlockingIOError where another process holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # a file system without locks: no other writer is seen
        if error.errno not in (errno.ENOLCK, errno.EBADF, *CANNOT):
            raise


def is_same(descriptor: int, path: Path) -> bool:
    """Return whether an open folder or file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


@contextmanager
def new_folders(folder: Path) -> Iterator[None]:
    """Make a folder and those above it for the block, and remove those of them that are then empty. Raises OSError."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        for place in reversed(missing):
            place.mkdir()
        yield
    finally:
        for place in missing:
            with suppress(OSError):
                place.rmdir()


def unwritable(path: Path, error: OSError, remedy: str) -> OutputError:
    """Return the error of the operating system as one with a remedy."""
    text = os.strerror(error.errno) if error.errno else str(error)
    return OutputError(f"{path}: must be writable, got {text}; {remedy}")


def _exchange(one: Path, other: Path) -> bool:
    """Swap the names of two folders in one step; return False where that is not possible. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if hasattr(libc, "renameat2"):
        failed = libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)
    elif hasattr(libc, "renamex_np"):
        failed = libc.renamex_np(*names, RENAME_EXCHANGE)
    else:
        return False
    code = ctypes.get_errno()
    if failed and code not in CANNOT:
        raise OSError(code, os.strerror(code), str(other))
    return not failed


def _earlier(place: Path) -> Path:
    return place.with_name(f".{place.name}.earlier")


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # a file system that cannot sync folders
        if error.errno not in CANNOT:
            raise
    finally:
        os.close(descriptor)
