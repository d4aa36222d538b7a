"""Rules of every command: how it may end, how long it may take, and how much memory what only reads may take."""

import ctypes
import gc
import resource
import signal
import sys
from functools import cache
from pathlib import Path
from types import FrameType

import pyarrow as pa

from tests.cli.invoke import Outcome, invoke

MOST_S = 20
"""Limit on the time of this process, which other work on the machine does not move."""

MOST_KIB = 2 * 2**20

MOST_READ_BYTES = 400_000_000
BYTES_PER_ROW = 64
"""Limit on the memory of a command that only reads, and for each row that it accepts."""

IMPORTED_BYTES = 168_000_000
"""Memory of a process that has read a tiny result: the interpreter and all imports, which the limit includes."""

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class BrokenRule(Exception):
    """An outcome that no input may have."""


def checked(*arguments: object) -> Outcome:
    """Run a command within the limits of time and memory. Raises BrokenRule for an outcome other than 0, 1 and 2."""

    def too_long(_: int, frame: FrameType | None) -> None:
        raise BrokenRule(f"took more than {MOST_S} s: {arguments}")

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, MOST_S)
    try:
        outcome = invoke(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    if outcome.exit_code not in (0, 1, 2) or "Traceback" in outcome.err or "Warning:" in outcome.err:
        raise BrokenRule(f"exit code {outcome.exit_code} of {arguments}:\n{outcome.err}")
    if outcome.exit_code == 2 and not outcome.err.startswith(("simserve: error: ", "Usage: ")):
        raise BrokenRule(f"no message of {arguments}:\n{outcome.err}")
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)
    if peak_kib > MOST_KIB:
        raise BrokenRule(f"took {peak_kib / 2**20:.2f} GiB by the end of {arguments}")
    return outcome


def checked_reading(n_rows: int, *arguments: object) -> Outcome:
    """Run a command that only reads so many rows, and hold its peak of memory to the limit, too.

    Linux forgets the peak of a process on request; elsewhere only the limits of every command hold.
    """
    if not CLEAR_REFS.exists():
        return checked(*arguments)
    _import_all()
    _release()
    CLEAR_REFS.write_text("5")
    begin = _bytes("VmRSS")
    outcome = checked(*arguments)
    taken = IMPORTED_BYTES + _bytes("VmHWM") - begin
    most = MOST_READ_BYTES + BYTES_PER_ROW * n_rows
    if taken > most:
        raise BrokenRule(f"took {taken / 1e6:,.0f} of {most / 1e6:,.0f} MB: {arguments}")
    return outcome


@cache
def _import_all() -> None:
    """Import what reading commands import, so that no case is the first."""

    gc.freeze()  # fast: later collections pass over all of this


def _release() -> None:
    """Give freed memory back, which a command would take again without a trace."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _bytes(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
