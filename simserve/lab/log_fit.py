"""Fit an engine's host constants to logs of single requests: only those that the logs bear, each with an interval."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path

import numpy as np

from simserve.lab.fit import Fit, Parameter, Progress, Theta, rounded
from simserve.lab.fitted_log import CANDIDATES, FittedConstant, LeftOutError, LogFit
from simserve.lab.log_checks import cached_share, cached_words, check_server, is_seen, one_level
from simserve.lab.log_errors import replay_log
from simserve.lab.log_groups import BLOCKS, Replayed, ReplayedSteps, groups_of, is_heavy, usable_requests
from simserve.lab.server import KERNELS, Server
from simserve.metrics.student import quantile
from simserve.tables.columns import Flags, Floats
from simserve.workload.readers.logs import read_log
from simserve.workload.readers.logs.base import Log
from simserve.workload.readers.logs.glossary import NOTHING, LogReading
from simserve.workload.readers.logs.steps import StepLog, is_steps, read_steps

CONFIDENCE = 0.95

OF_PROMPTS = ("busy_compute_frac", "busy_fp8_frac", "receive_s", "receive_token_s", "respond_s")
"""Constants that TTFT tells, and so the arrivals."""

OF_CACHES = ("busy_compute_frac", "busy_fp8_frac", "receive_token_s")
"""Constants that stand for prompts that were cached, where the log does not say which."""

REDRAWS = 3
"""Fits to arrivals drawn anew that must agree."""

KERNEL_SD = 0.1
"""How far kernels of a server may be from the timed ones: two campaigns differ by 5 to 11%, fits by 3 to 13%."""


def fit_files(
    paths: Sequence[Path], server: Server, progress: Progress | None = None, reading: LogReading = NOTHING
) -> LogFit:
    """Return the constants that bring predictions closest to logs of the server; those of prompts only where fits to
    arrivals that are drawn anew agree. Deterministic.

    Raises CalibrationError for logs that are too short, saturated throughout, or of another model or server.
    """

    def logs(seed: int = 0) -> list[Log | StepLog]:
        seed += server.scenario.seed
        return [read_steps(path) if is_steps(path) else read_log(path, seed, reading) for path in paths]

    first = logs()
    fit = fit_logs(first, server, progress)
    if not set(OF_PROMPTS) & fit.fitted.keys() or all(log.arrivals != "drawn" for log in first):
        return fit
    fits = [fit, *(fit_logs(logs(seed), server, progress) for seed in range(1, REDRAWS))]
    widest = dict(fit.fitted)
    for name in (name for name in OF_PROMPTS if name in fit.fitted):
        own = [each.fitted[name] for each in fits if name in each.fitted]
        if len(own) < len(fits) or not all(one.low <= other.value <= one.high for one in own for other in own):
            why = f"arrivals are drawn, and {REDRAWS} draws give different values"
            return fit_logs(first, server, progress, dict.fromkeys(OF_PROMPTS, why))
        widest[name] = replace(own[0], low=min(each.low for each in own), high=max(each.high for each in own))
    return replace(fit, fitted=widest)


def fit_logs(
    logs: Sequence[Log | StepLog],
    server: Server,
    progress: Progress | None = None,
    kept: Mapping[str, str] | None = None,
) -> LogFit:
    """Return the constants that bring predictions closest to logs of the server, but those `kept` as shipped, with the
    reason. Deterministic; raises as `fit_files` does."""
    return _ConstantFit(logs, server, progress, kept or {}).result()


class _ConstantFit(Fit):
    """Observations are mean latencies of groups of requests."""

    rounds = 2
    least_gain = 0.1

    def __init__(
        self, logs: Sequence[Log | StepLog], server: Server, progress: Progress | None, kept: Mapping[str, str]
    ) -> None:
        self.logs, self.server = logs, server
        of_requests = [log for log in logs if log.unit == "requests"]
        notes = [check_server(log, server.scenario) for log in of_requests]
        given = server.scenario.engine.constants
        no_prompts = "lines of steps do not tell single prompts"
        self.as_shipped = dict.fromkeys(() if of_requests else OF_PROMPTS, no_prompts)
        if server.calibration is None:
            self.as_shipped |= dict.fromkeys(KERNELS, f"kernels were not timed on {server.setup.gpu.name}")
        self.as_shipped |= {name: "given by the scenario" for name in CANDIDATES if name in given} | dict(kept)
        own = {name: getattr(server.setup.engine, name, 1.0) for name in CANDIDATES if name not in self.as_shipped}
        self.shipped = {name: float(value) for name, value in own.items() if value is not None}
        self.replays = self._replays(self.shipped)
        usable = [usable_requests(replay) for replay in self.replays]
        cached = [cached_share(replay, each.rows) for replay, each in zip(self.replays, usable, strict=True)]
        self.cached = next(filter(None, map(cached_words, sorted(cached, key=is_seen, reverse=True))), None)
        if any(map(is_seen, cached)):
            self.as_shipped |= dict.fromkeys(OF_CACHES, "cached prompts hide it")
        self.names = [name for name in self.shipped if name not in self.as_shipped]
        parameters = {
            name: Parameter(self.shipped[name], least, most, unit, KERNEL_SD if name in KERNELS else inf)
            for name in self.names
            for unit, least, most in [CANDIDATES[name]]
        }
        super().__init__(self.names, parameters, progress)
        self.queued = [each.queued for each in usable]
        self.n_requests = sum(len(each.rows) for each in usable)
        self.left_out = sum((Counter(each.left_out) for each in usable), Counter[str]())
        of_usable = [note for each in usable for note in each.notes]
        self.notes = [note for note in (*notes, one_level(self.replays), *of_usable) if note]
        self.groups = [
            group
            for index, (replay, each) in enumerate(zip(self.replays, usable, strict=True))
            for group in groups_of(index, replay, each)
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
        if self._misfit(self.base) > self._misfit(self._means(self.replays)):
            self.notes.append("fitted constants predict these logs no better than the shipped ones, which stay")
            self.chosen = ()
        errors, parts = self._errors_left_out()
        if sum(each.fitted_frac for each in errors.values()) > sum(each.shipped_frac for each in errors.values()):
            where = "At loads that a log does not hold" if "load" in parts else "In what was left out"
            self.notes.append(f"{where}, fitted constants are further off than shipped ones: log each load in question")
        for name in (name for name in self.parameters if name not in self.chosen):
            no_gain = "does not lower the error of what is left out"
            self.as_shipped[name] = no_gain if name in effective else "has no effect in these logs"
        ends, theta = self._intervals(), self.theta
        fitted = {name: FittedConstant(self.shipped[name], rounded(theta[name]), *ends[name]) for name in self.chosen}
        return LogFit(
            setup=self.server.setup,
            fitted=fitted,
            as_shipped=self.as_shipped,
            n_requests=self.n_requests,
            unit=" and ".join(dict.fromkeys(each.unit for each in self.logs)),
            left_out=self.left_out,
            errors=errors,
            parts=parts,
            notes=tuple(self.notes),
            cached=self.cached,
        )

    def _replay_one(self, index: int, theta: Theta) -> Replayed:
        changed = {name: value for name, value in theta.items() if value != self.shipped.get(name)}
        log, scenario = self.logs[index], self.server.with_constants(changed)
        return replay_log(log, scenario) if log.unit == "requests" else ReplayedSteps(log, scenario.setups[-1])

    def _replays(self, theta: Theta) -> list[Replayed]:
        return [self._replay_one(index, theta) for index in range(len(self.logs))]

    def replayed(self, theta: Theta) -> Floats:
        """Return the predicted mean of each group."""
        return self._means(self._replays(theta))

    def _means(self, replays: Sequence[Replayed]) -> Floats:
        return np.array([np.nanmean(replays[each.log].predicted[each.metric][each.rows]) for each in self.groups])

    def _misfit(self, predicted: Floats) -> float:
        return float(np.abs((self.measured - predicted) * self.weight) @ self.share)

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
            best, chosen = min(best, scores[name]), without[name]
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
        """Return the errors of parts that were replayed with constants fitted to the others, and name the parts."""
        log, heavy = np.array([each.log for each in self.groups]), is_heavy(self.groups, self.replays)
        if heavy.any():
            folds, parts = [~heavy, heavy], "the lighter and the heavier half of the load"
        elif len(self.logs) > 1:
            folds, parts = [log == index for index in range(len(self.logs))], f"{len(self.logs)} logs"
        else:
            folds, parts = self._folds(2), "halves of the log"
        sizes: dict[str, list[tuple[float, float]]] = {}
        for rows in folds:
            constants = self.solved(self.chosen, ~rows)
            for index in sorted(set(log[rows].tolist())):
                groups = [each for each, is_in in zip(self.groups, rows, strict=True) if is_in and each.log == index]
                mine = np.unique(np.concatenate([each.rows for each in groups]))
                sides = self.replays[index], self._replay_one(index, constants)
                for metric in sides[1].metrics:
                    own = mine if metric == "tpot_s" else mine[~self.queued[index][mine]]
                    known = own[sides[0].compared(metric)[own] & sides[1].compared(metric)[own]]
                    if len(known):
                        measured = float(self.logs[index].measured[metric][known].mean())
                        shipped, fitted = (float(each.predicted[metric][known].mean()) for each in sides)
                        sizes.setdefault(metric, []).append((abs(shipped / measured - 1), abs(fitted / measured - 1)))
        errors = {name: LeftOutError(*np.mean(values, axis=0).tolist()) for name, values in sizes.items()}
        return errors, parts
