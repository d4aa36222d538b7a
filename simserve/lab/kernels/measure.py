"""Time shapes on a device, each until its median is steady, into a table that is complete or named otherwise."""

import csv
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from statistics import median, quantiles
from time import monotonic
from typing import Any, Protocol, TextIO

from simserve.catalog.specs import GpuSpec
from simserve.errors import CalibrationError, OutputError
from simserve.lab.kernels.shapes import Shape, key_of
from simserve.lab.kernels.table import SHAPES
from simserve.tables.swap import locked

WARM_UP = 2
"""Repeats before those that count: the first one loads code and raises clocks."""

FEWEST, MOST = 7, 60
"""Repeats of a shape."""

STEADY_FRAC = 0.01
"""Standard error of the median, as a share of it, from which on a shape is finished."""

UNSTEADY_FRAC = 0.05
"""Standard error of a median that clocks or other work on the card must have moved."""

LONGEST_S = 3.0
"""Time after which a shape is finished, steady or not."""

SAME_MEMORY_FRAC = 0.06
"""Difference to the memory in the catalog that libraries and error correction make."""

MEASURED = ("op", "latency_s", "kernel", "device", "n_repeats", "error_frac")
COLUMNS = [*MEASURED, *dict.fromkeys(name for columns in SHAPES.values() for name in columns)]
"""Columns of a measured table: those that are measured, and those of SHAPES."""


class NotTimed(Exception):
    """A shape that a device cannot time, and why; others may be."""


@dataclass(frozen=True)
class TimedKernel:
    """A kernel ready to run on a device."""

    name: str
    repeat: Callable[[], float]
    """Run the kernel once more, on inputs that no cache holds, and return its seconds without the host's time."""


class Device(Protocol):
    """The card at hand."""

    name: str
    """The card and the versions of what runs its kernels."""
    n_gpus: int
    n_sms: int
    memory_bytes: float
    dtypes: Collection[str]
    """Dtypes of matrices that it multiplies."""

    def prepare(self, shape: Shape) -> TimedKernel:
        """Return the kernel of a shape, which replaces the one before. Raises NotTimed."""

    def close(self) -> None:
        """Release what the kernels need."""


@dataclass
class Measurement:
    """What came of a measurement so far."""

    n_shapes: int
    n_done: int = 0
    n_unsteady: int = 0
    """Shapes with a standard error beyond UNSTEADY_FRAC."""
    not_timed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Shapes that the device cannot time, by (operation, reason)."""

    @property
    def n_ended(self) -> int:
        """Shapes that were timed or cannot be."""
        return self.n_done + self.not_timed.total()

    @property
    def is_complete(self) -> bool:
        """Whether the table has all that it can have."""
        return self.n_ended == self.n_shapes


def check_card(device: Device, gpu: GpuSpec) -> None:
    """Refuse to measure a card under the name of another. Raises CalibrationError."""
    far = abs(device.memory_bytes / gpu.hbm_bytes - 1) > SAME_MEMORY_FRAC
    if device.n_sms != gpu.n_sms or far:
        named = f"{gpu.name} ({gpu.n_sms} SMs, {gpu.hbm_bytes / 2**30:.0f} GiB)"
        got = f"{device.name} ({device.n_sms} SMs, {device.memory_bytes / 2**30:.0f} GiB)"
        raise CalibrationError(f"lab measure: the card at hand must be {named}, got {got}; name its GPU of the catalog")


def partial_path(table: Path) -> Path:
    """Return the name of a table that is not complete."""
    return table.with_name(f"{table.name}.partial")


def measure(
    shapes: Sequence[Shape],
    device: Device,
    table: Path,
    limit_s: float,
    progress: Callable[[Measurement], None] = lambda _: None,
) -> Measurement:
    """Time the shapes that a partial table lacks, for about `limit_s`, and name the table as asked when none is left.
    Each row is in the file before the next shape begins. Raises CalibrationError, OutputError."""
    until = monotonic() + limit_s
    result = Measurement(len(shapes))
    with _started(table, device.name) as (file, rows):
        for row in rows:
            result.n_unsteady += float(row["error_frac"]) > UNSTEADY_FRAC
        done = {key_of(row) for row in rows}
        left = [shape for shape in shapes if key_of(shape) not in done]
        result.n_done = len(shapes) - len(left)
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        for shape in left:
            if monotonic() > until:
                break
            try:
                row = _timed(device, shape)
            except NotTimed as error:
                result.not_timed[shape["op"], str(error)] += 1
            else:
                writer.writerow(row)
                file.flush()
                result.n_done += 1
                result.n_unsteady += float(row["error_frac"]) > UNSTEADY_FRAC
            progress(result)
        if not result.n_done and result.not_timed:
            (_, reason), _ = result.not_timed.most_common(1)[0]
            raise CalibrationError(f"lab measure: a shape must run on {device.name}, got {reason}; try another PyTorch")
        if result.is_complete:
            os.fsync(file.fileno())
            os.replace(partial_path(table), table)
    return result


def _timed(device: Device, shape: Shape) -> dict[str, Any]:
    """Return the row of a shape: the median of as many repeats as its spread needs."""
    kernel = device.prepare(shape)
    for _ in range(WARM_UP):
        kernel.repeat()
    until = monotonic() + LONGEST_S
    seconds: list[float] = []
    while len(seconds) < FEWEST or (len(seconds) < MOST and _error_frac(seconds) > STEADY_FRAC and monotonic() < until):
        seconds.append(kernel.repeat())
    latency_s, error_frac = f"{median(seconds):.6g}", f"{_error_frac(seconds):.3g}"
    measured = (shape["op"], latency_s, kernel.name, device.name, len(seconds), error_frac)
    return {**shape, **dict(zip(MEASURED, measured, strict=True))}


def _error_frac(seconds: Sequence[float]) -> float:
    """Return the standard error of the median as a share of it: 1.253 sigma / sqrt(n) (normal errors), with sigma from
    the quartiles, which single interruptions do not move."""
    low, middle, high = quantiles(seconds, n=4)
    return 1.253 * (high - low) / 1.349 / sqrt(len(seconds)) / middle


@contextmanager
def _started(table: Path, device: str) -> Iterator[tuple[TextIO, list[dict[str, str]]]]:
    """Open the partial table of an earlier or a new measurement, for one process at a time, and return its rows."""
    partial = partial_path(table)
    if table.exists():
        raise OutputError(f"{table}: must not exist, as a measurement replaces none; name another table")
    try:
        with partial.open("a+", encoding="utf-8", newline="") as file, locked(partial):
            yield file, _rows_before(file, partial, device)
    except BlockingIOError:
        raise OutputError(f"{partial}: is written by another process; wait for it or name another table") from None
    except OSError as error:
        rule = f"must be writable, got {error.strerror or error}"
        raise OutputError(f"{partial}: {rule}; make its folder, free space or permit it") from error


def _rows_before(file: TextIO, partial: Path, device: str) -> list[dict[str, str]]:
    """Return the whole rows of a partial table, and leave it at their end; write the head of an empty one."""
    try:
        file.seek(0)
        text = file.read()
        whole = text[: text.rfind("\n") + 1]  # a killed process may have written half a row
        rows = list(csv.DictReader(whole.splitlines()))
        known = all(row["op"] in SHAPES and float(row["error_frac"]) >= 0 for row in rows)
    except (ValueError, TypeError, KeyError):
        known = False
    if not known or (text and not text.startswith(",".join(COLUMNS) + "\n")):
        raise CalibrationError(f"{partial}: must be a table that lab measure began; remove it")
    others = sorted({row["device"] for row in rows} - {device})
    if others:
        raise CalibrationError(f"{partial}: must be of the card at hand, {device}, got {others[0]}; remove it")
    file.truncate(len(whole.encode()))
    if not whole:
        csv.writer(file, lineterminator="\n").writerow(COLUMNS)
        file.flush()
    return rows
