"""Fit an engine's host constants so that replayed runs match the measurements of real servers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares, minimize

from simserve import catalog
from simserve.errors import CalibrationError
from simserve.lab.fit import Progress, rounded
from simserve.lab.runs import MeasuredRun, Prediction, replay
from simserve.tables.columns import Floats

STEP = {
    "step_host_s": (1.5e-3, 1e-6, 2e-2),
    "request_host_s": (4e-5, 1e-7, 1e-3),
    "gap_s": (2e-6, 1e-8, 2e-5),
    "busy_compute_frac": (0.9, 0.6, 1.0),
    "busy_fp8_frac": (0.95, 0.6, 1.0),
    "wait_frac": (0.2, 0.0, 2.0),
}
"""(start, least, most) of a step's time besides its kernels, fitted to TPOT."""

DOOR = {"receive_s": (2e-3, 1e-5, 5e-2), "receive_token_s": (1.5e-6, 1e-8, 5e-5), "respond_s": (3e-3, 1e-5, 1e-2)}
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


def fit_host(runs: Sequence[MeasuredRun], progress: Progress | None = None) -> HostFit:
    """Return the constants that bring the predictions of `runs`, all of one engine, closest. Deterministic.

    Runs limited by the KV cache test the memory model, not these constants, and are left out. wait_frac is 0
    where it drives others to their bounds, as it then stands for another cost. Raises CalibrationError if no run is
    left, and for runs of other versions than those that the catalog's host constants are of.
    """
    engine = runs[0].engine
    base = catalog.load_engine(engine).fitted_to
    others = {run.version or "runs without a version" for run in runs if _has_other_host(run, base)}
    if others:
        rule = f"host constants are fitted to runs of {engine} {base}, got {', '.join(sorted(others))}"
        raise CalibrationError(f"{rule}; leave these runs out")
    fitted = [each.run for each in replay(runs) if not each.is_limited_by_memory]
    if not fitted:
        raise CalibrationError("the KV cache limits all of these runs; give some with fewer requests in flight")
    without = {
        "busy_fp8_frac": all(run.weight_dtype in ("bf16", "fp16") for run in fitted),
        "wait_frac": all(run.tensor == 1 for run in fitted),
    }
    names = [name for name in STEP if not without.get(name)]  # constants of a step that such runs tell
    constants = _fitted(fitted, names, progress)
    if "wait_frac" in names and _n_at_bound(constants):
        no_wait = _fitted(fitted, [name for name in names if name != "wait_frac"], progress)
        constants = min(constants, no_wait, key=_n_at_bound)
    predictions = replay(fitted, constants)
    errors = (float(np.mean([abs(each.ratio(name) - 1) for each in predictions])) for name in ("tpot", "ttft"))
    return HostFit(constants, len(fitted), *errors)


def _fitted(runs: Sequence[MeasuredRun], names: Sequence[str], progress: Progress | None) -> dict[str, float]:
    """Return constants of a step, those that are named, and of the front end."""
    constants = {} if "wait_frac" in names else {"wait_frac": 0.0}
    constants |= {name: (STEP | DOOR)[name][0] for name in (*names, *DOOR)}
    for _ in range(ROUNDS):
        constants |= _fit_step(runs, constants, names)
        if runs[0].engine in TTFT_IS_USABLE:
            constants |= _fit_front_end(runs, constants)
        if progress:
            progress(", ".join(f"{name} {value:.3g}" for name, value in constants.items()))
    for name, value in constants.items():  # in few digits, or the least where the solver stopped next to it
        start, least, _ = (STEP | DOOR)[name]
        constants[name] = least if value - least < 1e-3 * start else rounded(value, DIGITS)
    return constants


def _n_at_bound(constants: Mapping[str, float]) -> int:
    """Count the constants of a step at a bound."""
    return sum(at_bound(name, value) for name, value in constants.items() if name in STEP and value)


def left_out(runs: Sequence[MeasuredRun], progress: Progress | None = None) -> list[Prediction]:
    """Predict each group of runs with constants fitted to the engine's other groups."""
    predictions: list[Prediction] = []
    for engine in sorted({run.engine for run in runs}):
        own = [run for run in runs if run.engine == engine]
        for group in sorted({run.group for run in own}):
            others = [run for run in own if run.group != group]
            if not others:
                continue
            if progress:
                progress(f"fitting {engine} without {group[1]} on {group[3]} GPUs")
            predictions += replay([run for run in own if run.group == group], fit_host(others).constants)
    return predictions


def _has_other_host(run: MeasuredRun, base: str) -> bool:
    """Tell whether the host is known to work in another way in a run's version than in the catalog's first."""
    first, own = (catalog.load_engine(run.engine, version=version) for version in (base, run.version or None))
    return any(getattr(own, name) != getattr(first, name) for name in HOST)


def at_bound(name: str, value: float) -> bool:
    """Tell whether the fit stopped at a bound."""
    _, least, most = (STEP | DOOR)[name]
    return bool(value <= 1.01 * least or value >= 0.99 * most)


def _fit_step(runs: Sequence[MeasuredRun], now: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    """Minimize squared log ratios of TPOT, which is smooth in the constants."""
    scale = np.array([STEP[name][0] for name in names])
    low, high = (np.array([STEP[name][i] for name in names]) / scale for i in (1, 2))

    def residuals(values: Floats) -> Floats:
        predictions = replay(runs, {**now, **dict(zip(names, values * scale, strict=True))})
        return np.log([each.ratio("tpot") for each in predictions])

    start = np.clip(np.array([now[name] for name in names]) / scale, low * 1.01, high * 0.99)
    solution = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=OUTLIER, diff_step=0.05, xtol=1e-3, ftol=1e-3
    )
    return dict(zip(names, (float(value) for value in solution.x * scale), strict=True))


def _fit_front_end(runs: Sequence[MeasuredRun], now: Mapping[str, float]) -> dict[str, float]:
    """Minimize mean log ratios of TTFT, which jumps as requests miss a step, without gradients."""
    names = list(DOOR)
    scale = np.array([DOOR[name][0] for name in names])

    def misfit(logs: Floats) -> float:
        constants = {**now, **_within(names, np.exp(logs) * scale)}
        return float(np.mean([abs(np.log(each.ratio("ttft"))) for each in replay(runs, constants)]))

    start = np.log(np.array([now[name] for name in names]) / scale)
    simplex = np.vstack([start, *(start + 0.5 * step for step in np.eye(len(names)))])
    solution = minimize(misfit, start, method="Nelder-Mead", options={"maxfev": 45, "initial_simplex": simplex})
    return _within(names, np.exp(solution.x) * scale)


def _within(names: Sequence[str], values: Floats) -> dict[str, float]:
    """Clip to the bounds of the front end."""
    return {name: float(np.clip(v, *DOOR[name][1:])) for name, v in zip(names, values, strict=True)}
