"""Server errors: how far latencies are off of servers that no constant was fitted to, for prediction intervals.

Prediction intervals hold the errors that fits leave open: those of kernels held out, and of servers like the fitted
ones. Servers of another model, version, card or split are off by more. That part is a sum of variances over few facts,
all known before a run. The shipped file has them, estimated from whole groups of servers that were left out.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt
from pathlib import Path
from typing import Any

from simserve.catalog.dtypes import NEEDS_RATE
from simserve.cost.calibration import calibration_path
from simserve.errors import CalibrationError
from simserve.input_files import read_json
from simserve.scenario.setup import PoolSetup

SCHEMA = "simserve.server_errors/1"

NAME = "server_errors"
"""Name of the shipped file, beside the folders of the calibrations."""

METRICS = ("tpot_s", "ttft_s", "e2e_s")

WITHIN_SD: Mapping[str, float] = {"tpot_s": 0.025, "ttft_s": 0.13, "e2e_s": 0.03}
"""Spread of the log ratio of measured to predicted means, for servers like the fitted ones, left out of the fit
(docs/validation.md)."""

NEW_DTYPE = "nvfp4"
"""A dtype with matrix units on cards that came after those with servers that were fitted."""

REASONS: Mapping[str, str] = {
    "server": "no run of {model} under {engine} {version} on {gpu} was fitted",
    "experts": "no run of {model}, with experts, was fitted",
    "generation": "no server on {gpu} or a card of its generation was fitted",
    "untimed": "some kernels of {model} under {engine} were not timed on {gpu}",
    "front_end": "no TTFT of {engine} was fitted",
    "roles": "no server with prefill and decode apart was fitted",
    "nodes": "no server over several nodes was fitted",
}
"""Facts that add variance, and what each says of a pool. `server` holds wherever nothing was fitted."""


@dataclass(frozen=True)
class FittedServers:
    """A group of servers that host constants were fitted to."""

    engine: str
    version: str
    """Version of the catalog that the constants are of."""
    gpu: str
    model: str
    weight_dtype: str
    metrics: tuple[str, ...]
    """Latencies that the fit used."""


@dataclass(frozen=True)
class ServerErrors:
    """The content of the file."""

    fitted: tuple[FittedServers, ...]
    sds: Mapping[str, Mapping[str, float]]
    """Standard deviations of log ratios by METRICS, then by fact; their squares add up."""

    @property
    def ttft_engines(self) -> frozenset[str]:
        """Engines with a front end that was fitted."""
        return frozenset(each.engine for each in self.fitted if "ttft_s" in each.metrics)

    def of(self, setups: Sequence[PoolSetup]) -> dict[str, float]:
        """Return the spread between servers by METRICS, beyond WITHIN_SD: the facts of all pools together."""
        return {name: sqrt(sum(variance for variance, _ in self._parts(setups, name))) for name in METRICS}

    def reason(self, setups: Sequence[PoolSetup]) -> str | None:
        """Return why intervals are as wide as they are: the fact with the largest part, of TPOT if it has any."""
        parts = next((each for name in METRICS if (each := self._parts(setups, name))), None)
        return None if parts is None else max(parts)[1]

    def _parts(self, setups: Sequence[PoolSetup], metric: str) -> list[tuple[float, str]]:
        """Return the variances of a latency with their reasons."""
        reasons: dict[str, str] = {}
        for setup in setups:
            if not self._is_fitted(setup, metric):
                reasons = {fact: _reason(fact, setup) for fact in facts_of((setup,), self.ttft_engines)} | reasons
        of_fact = self.sds[metric]
        return [(of_fact[fact] ** 2, reasons[fact]) for fact in REASONS if fact in reasons and of_fact.get(fact)]

    def _is_fitted(self, setup: PoolSetup, metric: str) -> bool:
        """Tell whether constants were fitted to this latency of such servers; both of them make the E2E latency."""
        if setup.engine.name == "ideal":
            return True
        if metric == "e2e_s":
            return all(self._is_fitted(setup, each) for each in ("tpot_s", "ttft_s"))
        calibration = setup.calibration
        if calibration is not None and calibration.host_version is not None:  # to logs of the user's own server
            return True
        if calibration is not None and (runs := calibration.runs) is not None:
            return setup.calibrated and setup.model.name in runs.models and metric in runs.errors
        own = (setup.engine.name, setup.engine.constants_of, setup.gpu.name, setup.model.name, setup.weight_dtype)
        groups = [each for each in self.fitted if metric in each.metrics]
        return own in [(each.engine, each.version, each.gpu, each.model, each.weight_dtype) for each in groups]


def _reason(fact: str, setup: PoolSetup) -> str:
    engine = setup.engine
    return REASONS[fact].format(model=setup.model.name, engine=engine.name, version=engine.version, gpu=setup.gpu.name)


def facts_of(setups: Iterable[PoolSetup], ttft_engines: Collection[str]) -> frozenset[str]:
    """Return which of REASONS are true of any of the pools."""
    return frozenset(fact for setup in setups for fact in _facts(setup, ttft_engines))


def _facts(setup: PoolSetup, ttft_engines: Collection[str]) -> Iterable[str]:
    yield "server"
    if setup.model.experts is not None:
        yield "experts"
    if setup.gpu.multiplies(NEW_DTYPE):
        yield "generation"
    if _is_untimed(setup):
        yield "untimed"
    if setup.engine.name not in ttft_engines:
        yield "front_end"
    if setup.role != "both":
        yield "roles"
    if setup.gpus_per_lane * setup.n_sharing > setup.gpu.gpus_per_node:
        yield "nodes"


def _is_untimed(setup: PoolSetup) -> bool:
    """Tell whether kernels are scaled from another card, engine or dtype."""
    calibration, dtype = setup.calibration, setup.weight_dtype
    if calibration is None or calibration.runs is not None or not setup.calibrated or setup.borrowed:
        return True
    return dtype in NEEDS_RATE and ("gemm", dtype) not in calibration.forms


def server_errors() -> ServerErrors:
    """Return the shipped estimate."""
    return read_server_errors(calibration_path(NAME))


@cache
def read_server_errors(path: Path) -> ServerErrors:
    """Read a file of server errors. Raises CalibrationError."""
    try:
        return parsed(read_json(path))
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        rule = f"must have the errors of servers ({type(error).__name__}: {error})"
        raise CalibrationError(f"{path}: {rule}; run simserve lab server-errors") from None


def parsed(data: Mapping[str, Any]) -> ServerErrors:
    """Return the content of a file."""
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']}")
    fitted = tuple(FittedServers(**{**each, "metrics": tuple(each["metrics"])}) for each in data["fitted"])
    sds = {name: {fact: float(data["metrics"][name]["sd"][fact]) for fact in REASONS} for name in METRICS}
    return ServerErrors(fitted, sds)
