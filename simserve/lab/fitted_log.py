"""Fitted log: the host constants that logs tell, what they are worth, and all of it as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from simserve.lab.log_groups import FEW_USED_FRAC
from simserve.lab.server import KERNELS, Server, with_kernels
from simserve.lab.write import make_folder, source_of
from simserve.scenario import PoolSetup
from simserve.tables.files import json_text, replace_text

CANDIDATES: Mapping[str, tuple[float, float, float]] = {
    "step_host_s": (5e-4, 0.0, 5e-2),
    "request_host_s": (2e-5, 0.0, 2e-3),
    "exposed_step_s": (5e-4, 0.0, 1e-2),
    "busy_compute_frac": (-0.05, 0.3, 1.0),
    "busy_fp8_frac": (-0.05, 0.3, 1.0),
    "wait_frac": (0.1, 0.0, 2.0),
    "receive_s": (1e-3, 0.0, 1e-1),
    "receive_token_s": (1e-6, 0.0, 1e-4),
    "respond_s": (2e-3, 0.0, 1e-1),
    **dict.fromkeys(KERNELS, (0.1, 0.5, 2.0)),
}
"""(change of a replay that shows the effect, least, most) of each constant that a log may tell, and of each factor on
the kernels' work. Gaps between kernels are the same in each step, as step_host_s, so gap_s stays as shipped."""


@dataclass(frozen=True)
class FittedConstant:
    """A constant that the logs tell."""

    shipped: float
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LeftOutError:
    """Mean absolute error of predicted means over the parts that were left out in turn."""

    shipped_frac: float
    fitted_frac: float


@dataclass(frozen=True)
class LogFit:
    """Constants by their names in the catalog, and what they are worth."""

    setup: PoolSetup
    fitted: Mapping[str, FittedConstant]
    as_shipped: Mapping[str, str]
    """Why each other constant stays as it is."""
    n_requests: int
    unit: str
    """What these are: requests, or lines of steps."""
    left_out: Mapping[str, int]
    """Requests or lines that were not used, by reason."""
    errors: Mapping[str, LeftOutError]
    """Errors by latency; each part of the logs is predicted with constants fitted to the others."""
    parts: str
    """What was left out in turn."""
    notes: tuple[str, ...]
    cached: str | None = None
    """What TTFT says about cached prompts; None: nothing."""

    @property
    def used_frac(self) -> float:
        """Share of the answered requests that were used."""
        return self.n_requests / max(1, self.n_requests + sum(self.left_out.values()))

    @property
    def is_enough(self) -> bool:
        """Whether enough of the logs was used for the constants to be worth using."""
        return self.used_frac > FEW_USED_FRAC

    @property
    def at_bound(self) -> Sequence[str]:
        """Constants that stand for another cost, as they are where they can go no further."""
        return [name for name, fitted in self.fitted.items() if fitted.value in CANDIDATES[name][1:]]


def fit_facts(fit: LogFit, server: Server, logs: Sequence[Path]) -> dict[str, Any]:
    """Return what `simserve calibrate --logs --json` prints."""
    setup = server.setup
    bounds = [f"{name} is at its bound: it stands for another cost, as that of kernels" for name in fit.at_bound]
    left_out = [f"{n} {fit.unit} left out: {reason}" for reason, n in fit.left_out.items()]
    section = {"name": setup.engine.name, "version": setup.engine.version}
    return {
        "scenario": server.scenario.name,
        "gpu": setup.gpu.name,
        "engine": setup.engine.name,
        "engine_version": setup.engine.version,
        "logs": [path.name for path in logs],
        "n_requests": fit.n_requests,
        "unit": fit.unit,
        "used_frac": fit.used_frac,
        "is_enough": fit.is_enough,
        "at_bound": list(fit.at_bound),
        "fitted": {name: asdict(each) for name, each in fit.fitted.items()},
        "as_shipped": dict(fit.as_shipped),
        "cached": fit.cached,
        "errors": {name: asdict(each) for name, each in fit.errors.items()},
        "parts": fit.parts,
        "engine_section": section | {name: each.value for name, each in fit.fitted.items() if name not in KERNELS},
        "warnings": [*fit.notes, *left_out, *bounds],
    }


def write_fitted(path: Path, base: Path, fit: LogFit, logs: Sequence[Path]) -> None:
    """Write a calibration with what was fitted to logs: all constants of the host with their sources, and the kernels
    of another. Raises OutputError."""
    engine, host = fit.setup.engine, {}
    names = ", ".join(log.name for log in logs)
    for name in (*(each for each in CANDIDATES if each not in KERNELS), "gap_s"):
        own, shipped = fit.fitted.get(name), getattr(engine, name)
        if own is not None:
            text = f"fitted to {fit.n_requests} {fit.unit} of {names}; 95% CI {own.low:g} to {own.high:g}"
            host[name] = {"value": own.value, "source": text}
        elif shipped is not None:
            host[name] = {"value": shipped, "source": f"as shipped: {engine.sources.get(name, 'the catalog')}"}
    values = {name: each.value for name, each in fit.fitted.items()}
    factors = {name: value for name, value in values.items() if name in KERNELS}
    content = with_kernels(base, values)
    sources = {"logs": [source_of(log) for log in logs]} | ({"factors": factors} if factors else {})
    content |= {"made": content.pop("made", {}) | sources}
    make_folder(path.parent)
    replace_text(path, json_text(content | {"host": host, "host_version": engine.version}))
