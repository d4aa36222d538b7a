"""Validation: errors of predictions against measurements of real servers, by group, with intervals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.cost.calibration import Calibration, calibration_path, read_calibration
from simserve.errors import CalibrationError
from simserve.lab.host_fit import fit_host
from simserve.lab.serving import Campaign, ServingPoint, ServingRow, replay

RESAMPLES = 2000
"""Bootstrap resamples of whole groups for the interval of a mean error."""

METRICS: Mapping[str, Callable[[ServingPoint], float]] = {
    "ttft": lambda point: point.ttft_ratio,
    "tpot": lambda point: point.tpot_ratio,
}
"""Ratios predicted / measured."""


@dataclass(frozen=True)
class Errors:
    """Errors of some points in one metric, as shares of the measured value."""

    n: int
    mape_frac: float
    median_frac: float
    p90_frac: float
    bias_frac: float
    """Mean of the signed errors."""
    interval: tuple[float, float] | None
    """90% confidence interval of the mean error, from a bootstrap of whole groups; None for a single group."""


@dataclass(frozen=True)
class Validation:
    """Points predicted with the shipped constants, and with constants fitted without them."""

    points: tuple[ServingPoint, ...]
    left_out: tuple[ServingPoint, ...]
    """Each group predicted with constants fitted to the other groups; empty if not requested."""
    campaign: Campaign


def kernels_of(name: str) -> Calibration:
    """Load a calibration with its errors on held-out kernels, by `<gpu>/<engine>` or path. Raises
    CalibrationError."""
    calibration = read_calibration(calibration_path(name))
    if calibration.runs is not None:
        rule = f"{name} is fitted to serving runs, without kernels held out"
        raise CalibrationError(f"{rule}; validate a table of runs, or give {calibration.runs.kernels_of}")
    return calibration


def validate(
    rows: Sequence[ServingRow],
    campaign: Campaign,
    *,
    leave_out: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Validation:
    """Replay all rows; with leave_out, also predict each group with constants fitted to the engine's other groups."""
    points = replay(rows, campaign)
    left_out: list[ServingPoint] = []
    for engine in sorted({row.engine for row in rows}) if leave_out else ():
        mine = [row for row in rows if row.engine == engine]
        for group in sorted({row.group for row in mine}):
            rest = [row for row in mine if row.group != group]
            if not rest:
                continue
            if progress:
                progress(f"fitting {engine} without {group[1]} on {group[3]} GPUs")
            constants = fit_host(rest, campaign).constants
            left_out += replay([row for row in mine if row.group == group], campaign, constants)
    return Validation(tuple(points), tuple(left_out), campaign)


def errors(points: Sequence[ServingPoint], metric: str) -> Errors:
    """Return the errors of some points. Raises ValueError without any."""
    ratio = METRICS[metric]
    signed = np.array([ratio(point) - 1 for point in points])
    return errors_of(signed, _interval([point.row.group for point in points], np.abs(signed)))


def errors_of(signed: NDArray[np.float64], interval: tuple[float, float] | None = None) -> Errors:
    """Summarize errors `(n,)`, n > 0, each predicted / measured - 1."""
    size = np.abs(signed)
    return Errors(
        n=len(signed),
        mape_frac=float(size.mean()),
        median_frac=float(np.median(size)),
        p90_frac=float(np.percentile(size, 90)),
        bias_frac=float(signed.mean()),
        interval=interval,
    )


def _interval(groups: Sequence[object], size: NDArray[np.float64]) -> tuple[float, float] | None:
    """Bootstrap whole groups, as the runs of one server are correlated."""
    names = sorted(set(groups), key=str)
    if len(names) < 2:
        return None
    by_group = [size[[group == name for group in groups]] for name in names]
    generator = np.random.default_rng(0)
    picks = generator.integers(0, len(names), (RESAMPLES, len(names)))
    sums, counts = np.array([part.sum() for part in by_group]), np.array([len(part) for part in by_group])
    means = sums[picks].sum(axis=1) / counts[picks].sum(axis=1)
    low, high = np.percentile(means, [5, 95])
    return float(low), float(high)


def by(points: Sequence[ServingPoint], key: Callable[[ServingRow], str]) -> dict[str, list[ServingPoint]]:
    """Group points by a property of their runs, in the order of the keys."""
    groups: dict[str, list[ServingPoint]] = {}
    for point in points:
        groups.setdefault(key(point.row), []).append(point)
    return dict(sorted(groups.items()))


def worst(points: Sequence[ServingPoint], metric: str, n: int) -> list[ServingPoint]:
    """Return the points with the largest errors, largest first."""
    ratio = METRICS[metric]
    return sorted(points, key=lambda point: -abs(np.log(ratio(point))))[:n]
