"""Fit an engine's host constants to logs of single requests: only those that the logs bear, each with an interval."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from simserve.lab.fit import Fit, Parameter, Progress, Theta, rounded
from simserve.lab.log_errors import ReplayedLog, Server, replay_log
from simserve.lab.log_groups import BLOCKS, groups_of, usable_requests
from simserve.metrics.student import quantile
from simserve.scenario import PoolSetup
from simserve.tables.columns import Flags, Floats
from simserve.workload.readers.logs.base import Log

CANDIDATES: Mapping[str, tuple[float, float, float]] = {
    "step_host_s": (5e-4, 0.0, 5e-2),
    "request_host_s": (2e-5, 0.0, 2e-3),
    "exposed_step_s": (5e-4, 0.0, 1e-2),
    "busy_compute_frac": (-0.05, 0.3, 1.0),
    "receive_s": (1e-3, 0.0, 1e-1),
    "receive_token_s": (1e-6, 0.0, 1e-4),
    "respond_s": (2e-3, 0.0, 1e-1),
}
"""(change of a replay that shows the effect, least, most) of each constant that a log may tell. Gaps between kernels
are the same in each step, as step_host_s."""

CONFIDENCE = 0.95


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
    left_out: Mapping[str, int]
    """Requests that were not used, by reason."""
    errors: Mapping[str, LeftOutError]
    """Errors by latency; each part of the logs is predicted with constants fitted to the others."""
    parts: str
    """What was left out in turn."""
    notes: tuple[str, ...]


def fit_logs(logs: Sequence[Log], server: Server, progress: Progress | None = None) -> LogFit:
    """Return the constants that bring predictions closest to logs of the server. Deterministic.

    Raises CalibrationError for logs that are too short, saturated throughout, or of another server.
    """
    return _ConstantFit(logs, server, progress).result()


class _ConstantFit(Fit):
    """Observations are mean latencies of groups of requests."""

    rounds = 2
    least_gain = 0.1

    def __init__(self, logs: Sequence[Log], server: Server, progress: Progress | None) -> None:
        self.logs, self.server = logs, server
        given = server.scenario.engine.constants
        own = {name: getattr(server.setup.engine, name) for name in CANDIDATES if name not in given}
        self.shipped = {name: float(value) for name, value in own.items() if value is not None}
        self.as_shipped = {name: "given by the scenario" for name in CANDIDATES if name in given}
        parameters = {
            name: Parameter(start, *CANDIDATES[name][1:], unit=CANDIDATES[name][0])
            for name, start in self.shipped.items()
        }
        super().__init__(self.shipped, parameters, progress)
        self.replays = self._replays(self.shipped)
        usable = [usable_requests(replay) for replay in self.replays]
        self.n_requests = sum(len(each.rows) for each in usable)
        self.left_out = sum((Counter(each.left_out) for each in usable), Counter[str]())
        self.notes = [note for each in usable for note in each.notes]
        self.groups = [
            group
            for index, (replay, each) in enumerate(zip(self.replays, usable, strict=True))
            for group in groups_of(index, replay, each.rows)
        ]
        self.measured = np.array([logs[each.log].measured[each.metric][each.rows].mean() for each in self.groups])
        self.weight = np.array([each.weight for each in self.groups]) / self.measured
        n_of = Counter(each.metric for each in self.groups)
        self.share = np.array([1 / n_of[each.metric] for each in self.groups])  # both latencies count alike
        self.parts = self._folds(5)

    def result(self) -> LogFit:
        """Choose constants, fit them, and hold them against what was left out."""
        self.choose()
        effective, fewer = set(self.names), self._without_proxies()
        self.chosen = ()
        while self.chosen != fewer:
            self.chosen = fewer
            self.refine()
            ends = self._intervals()
            fewer = tuple(name for name in fewer if not ends[name][0] <= self.shipped[name] <= ends[name][1])
        errors, parts = self._errors_left_out()
        if sum(each.fitted_frac for each in errors.values()) > sum(each.shipped_frac for each in errors.values()):
            self.notes.append("fitted constants predict what was left out no better than the shipped ones, which stay")
            self.chosen = ()
            errors = {name: LeftOutError(each.shipped_frac, each.shipped_frac) for name, each in errors.items()}
        for name in (name for name in self.shipped if name not in self.chosen):
            no_gain = "does not lower the error of what is left out"
            self.as_shipped[name] = no_gain if name in effective else "has no effect in these logs"
        intervals = self._intervals()
        fitted = {
            name: FittedConstant(self.shipped[name], rounded(self.theta[name]), *intervals[name])
            for name in self.chosen
        }
        return LogFit(
            setup=self.server.setup,
            fitted=fitted,
            as_shipped=self.as_shipped,
            n_requests=self.n_requests,
            left_out=self.left_out,
            errors=errors,
            parts=parts,
            notes=tuple(self.notes),
        )

    def _replay_one(self, index: int, theta: Theta) -> ReplayedLog:
        changed = {name: value for name, value in theta.items() if value != self.shipped.get(name)}
        return replay_log(self.logs[index], self.server.with_constants(changed))

    def _replays(self, theta: Theta) -> list[ReplayedLog]:
        return [self._replay_one(index, theta) for index in range(len(self.logs))]

    def replayed(self, theta: Theta) -> Floats:
        """Return the predicted mean of each group."""
        replays = self._replays(theta)
        return np.array([np.nanmean(replays[each.log].predicted[each.metric][each.rows]) for each in self.groups])

    def effect(self, name: str) -> dict[str, Floats]:
        """Return what a unit of a constant adds to the observations, and tell that it is known."""
        effect = super().effect(name)
        self.progress(f"effect of {name}")
        return effect

    def _without_proxies(self) -> tuple[str, ...]:
        """Return the chosen constants without those that stood for others, and help no more beside them."""
        best, chosen = self.score(self.chosen), self.chosen
        while chosen:
            without = {name: tuple(each for each in chosen if each != name) for name in chosen}
            scores = {name: self.score(names) for name, names in without.items()}
            name = min(scores, key=lambda each: scores[each])
            if scores[name] > best + self.gain(best):
                break
            chosen = without[name]
        return chosen

    def _folds(self, n: int) -> list[Flags]:
        """Return the groups of each part that is left out: consecutive blocks of all logs, `(n_groups,)` each."""
        block = np.array([each.block for each in self.groups])
        return [(block >= first) & (block < last) for first, last in pairwise(np.linspace(0, BLOCKS, n + 1).round())]

    def _intervals(self) -> dict[str, tuple[float, float]]:
        """Return CONFIDENCE intervals of what is chosen: the jackknife over blocks."""
        without = [self.solved(self.chosen, ~rows) for rows in self._folds(BLOCKS)]
        half = quantile((1 + CONFIDENCE) / 2, BLOCKS - 1)
        result = {}
        for name in self.chosen:
            values = np.array([each[name] for each in without])
            error = float(np.sqrt((BLOCKS - 1) / BLOCKS * np.square(values - values.mean()).sum()))
            own, ends = self.parameters[name], (self.theta[name] - half * error, self.theta[name] + half * error)
            result[name] = rounded(max(ends[0], own.least)), rounded(min(ends[1], own.most))
        return result

    def _errors_left_out(self) -> tuple[dict[str, LeftOutError], str]:
        """Return the errors of parts that were replayed with constants fitted to the others: logs, or halves of one."""
        by_log = len(self.logs) > 1
        log = np.array([each.log for each in self.groups])
        folds = [log == index for index in range(len(self.logs))] if by_log else self._folds(2)
        sizes: dict[str, list[tuple[float, float]]] = {}
        for rows in folds:
            constants = self.solved(self.chosen, ~rows)
            for index in sorted(set(log[rows].tolist())):
                groups = [each for each, is_in in zip(self.groups, rows, strict=True) if is_in and each.log == index]
                mine = np.unique(np.concatenate([each.rows for each in groups]))
                sides = self.replays[index], self._replay_one(index, constants)
                for metric in sides[1].metrics:
                    known = mine[sides[0].compared(metric)[mine] & sides[1].compared(metric)[mine]]
                    if len(known):
                        measured = float(self.logs[index].measured[metric][known].mean())
                        shipped, fitted = (float(each.predicted[metric][known].mean()) for each in sides)
                        sizes.setdefault(metric, []).append((abs(shipped / measured - 1), abs(fitted / measured - 1)))
        errors = {name: LeftOutError(*np.mean(values, axis=0).tolist()) for name, values in sizes.items()}
        return errors, f"{len(folds)} logs" if by_log else "halves of the log"


def fit_facts(fit: LogFit, server: Server, logs: Sequence[Path]) -> dict[str, Any]:
    """Return what `simserve calibrate --logs --json` prints."""
    setup = server.setup
    at_bound = [name for name, each in fit.fitted.items() if each.value in CANDIDATES[name][1:]]
    bounds = [f"{name} is at its bound: it stands for another cost, as that of kernels" for name in at_bound]
    left_out = [f"{n} requests left out: {reason}" for reason, n in fit.left_out.items()]
    section = {"name": setup.engine.name, "version": setup.engine.version}
    return {
        "scenario": server.scenario.name,
        "gpu": setup.gpu.name,
        "engine": setup.engine.name,
        "engine_version": setup.engine.version,
        "logs": [path.name for path in logs],
        "n_requests": fit.n_requests,
        "fitted": {name: asdict(each) for name, each in fit.fitted.items()},
        "as_shipped": dict(fit.as_shipped),
        "errors": {name: asdict(each) for name, each in fit.errors.items()},
        "parts": fit.parts,
        "engine_section": section | {name: each.value for name, each in fit.fitted.items()},
        "warnings": [*fit.notes, *left_out, *bounds],
    }


def host_constants(fit: LogFit, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return all constants with their sources, as a calibration holds them; names: of the logs."""
    engine, result = fit.setup.engine, {}
    for name in CANDIDATES:
        each, shipped = fit.fitted.get(name), getattr(engine, name)
        if each is not None:
            text = f"fitted to {fit.n_requests} requests of {', '.join(names)}; 95% CI {each.low:g} to {each.high:g}"
            result[name] = {"value": each.value, "source": text}
        elif shipped is not None:
            result[name] = {"value": shipped, "source": f"as shipped: {engine.sources.get(name, 'the catalog')}"}
    return result
