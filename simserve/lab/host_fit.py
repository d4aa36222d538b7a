"""Fit an engine's host constants so that replayed runs match the measurements of real servers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, minimize

from simserve import catalog
from simserve.errors import CalibrationError
from simserve.lab.serving import Campaign, ServingRow, replay

STEP = {
    "step_host_s": (1.5e-3, 1e-6, 2e-2),
    "request_host_s": (4e-5, 1e-7, 1e-3),
    "gap_s": (2e-6, 1e-8, 2e-5),
    "busy_compute_frac": (0.9, 0.6, 1.0),
}
"""(start, least, most) of a step's time besides its kernels, fitted to TPOT."""

DOOR = {
    "receive_s": (2e-3, 1e-5, 5e-2),
    "receive_token_s": (1.5e-6, 1e-8, 5e-5),
    "respond_s": (3e-3, 1e-5, 1e-2),
}
"""(start, least, most) of the front end's times, fitted to TTFT."""

HOST = (*STEP, *DOOR, "async_scheduling", "exposed_step_s", "async_excludes", "pads_to_graphs", "eager_kernel_s")
"""What an engine's version says of its host."""

ROUNDS = 2
"""Alternations of both fits, which hardly affect each other."""

DIGITS = 3
"""Significant digits of a constant."""

OUTLIER = 0.05
"""Log ratio beyond which a run has less weight."""

TTFT_IS_USABLE = frozenset({"vllm", "sglang"})
"""Engines with a measured TTFT that reflects the engine; TensorRT-LLM's runs wait for a missing slot."""


@dataclass(frozen=True)
class HostFit:
    """Constants by their names in the catalog, and their errors on the fitted runs."""

    constants: Mapping[str, float]
    n_rows: int
    tpot_mape_frac: float
    ttft_mape_frac: float


def fit_host(rows: Sequence[ServingRow], campaign: Campaign, progress: Callable[[str], None] | None = None) -> HostFit:
    """Return the constants that bring the predictions of `rows`, all of one engine, closest. Deterministic.

    Runs limited by the KV cache test the memory model, not these constants, and are left out. Raises CalibrationError
    if no run is left, and for runs of other versions than those that the catalog's host constants are of.
    """
    base = catalog.load_engine(rows[0].engine).fitted_to
    others = {row.engine_version or "runs without a version" for row in rows if _has_other_host(row, base)}
    if others:
        rule = f"host constants are fitted to runs of {rows[0].engine} {base}, got {', '.join(sorted(others))}"
        raise CalibrationError(f"{rule}; leave these runs out")
    fitted = [point.row for point in replay(rows, campaign) if not point.is_limited_by_memory]
    if not fitted:
        raise CalibrationError("the KV cache limits all of these runs; give some with fewer requests in flight")
    constants = {name: start for name, (start, _, _) in (STEP | DOOR).items()}
    for _ in range(ROUNDS):
        constants |= _fit_step(fitted, campaign, constants)
        if fitted[0].engine in TTFT_IS_USABLE:
            constants |= _fit_front_end(fitted, campaign, constants)
        if progress:
            progress(", ".join(f"{name} {value:.3g}" for name, value in constants.items()))
    constants = {name: float(f"{value:.{DIGITS}g}") for name, value in constants.items()}
    points = replay(fitted, campaign, constants)
    return HostFit(
        constants,
        len(fitted),
        float(np.mean([abs(point.tpot_ratio - 1) for point in points])),
        float(np.mean([abs(point.ttft_ratio - 1) for point in points])),
    )


def _has_other_host(row: ServingRow, base: str) -> bool:
    """Tell whether the host is known to work in another way in a run's version than in the catalog's first."""
    first, own = (catalog.load_engine(row.engine, version=version) for version in (base, row.engine_version or None))
    return any(getattr(own, name) != getattr(first, name) for name in HOST)


def at_bound(name: str, value: float) -> bool:
    """Tell whether the fit stopped at a bound."""
    _, least, most = (STEP | DOOR)[name]
    return bool(value <= 1.01 * least or value >= 0.99 * most)


def _fit_step(rows: Sequence[ServingRow], campaign: Campaign, now: Mapping[str, float]) -> dict[str, float]:
    """Minimize squared log ratios of TPOT, which is smooth in the constants."""
    names = list(STEP)
    scale = np.array([STEP[name][0] for name in names])
    low, high = (np.array([STEP[name][i] for name in names]) / scale for i in (1, 2))

    def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
        points = replay(rows, campaign, {**now, **dict(zip(names, values * scale, strict=True))})
        return np.log([point.tpot_ratio for point in points])

    start = np.clip(np.array([now[name] for name in names]) / scale, low * 1.01, high * 0.99)
    solution = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=OUTLIER, diff_step=0.05, xtol=1e-3, ftol=1e-3
    )
    return dict(zip(names, (float(value) for value in solution.x * scale), strict=True))


def _fit_front_end(rows: Sequence[ServingRow], campaign: Campaign, now: Mapping[str, float]) -> dict[str, float]:
    """Minimize mean log ratios of TTFT, which jumps as requests miss a step, without gradients."""
    names = list(DOOR)
    scale = np.array([DOOR[name][0] for name in names])

    def misfit(logs: NDArray[np.float64]) -> float:
        constants = {**now, **_within(names, np.exp(logs) * scale)}
        return float(np.mean([abs(np.log(point.ttft_ratio)) for point in replay(rows, campaign, constants)]))

    start = np.log(np.array([now[name] for name in names]) / scale)
    simplex = np.vstack([start, *(start + 0.5 * step for step in np.eye(len(names)))])
    solution = minimize(misfit, start, method="Nelder-Mead", options={"maxfev": 45, "initial_simplex": simplex})
    return _within(names, np.exp(solution.x) * scale)


def _within(names: Sequence[str], values: NDArray[np.float64]) -> dict[str, float]:
    """Clip to the bounds of the front end."""
    return {name: float(np.clip(v, *DOOR[name][1:])) for name, v in zip(names, values, strict=True)}
