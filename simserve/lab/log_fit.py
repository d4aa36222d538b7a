"""Fit an engine's host constants to logs of single requests: only those that the logs bear, each with an interval.

A replay of the log tells the time that each request should take, and replays with one constant changed tell what that
constant would add to it. Least squares over groups of requests then give the constants. One is added after the other,
the one that helps most first, as long as groups that were left out are predicted better.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from simserve.cost.calibration import calibration_path
from simserve.errors import CalibrationError
from simserve.lab.log_errors import STAND_IN, ReplayedLog, quartiles, replay_log
from simserve.metrics.student import quantile
from simserve.scenario import PoolSetup, Scenario
from simserve.scenario.loader import load_scenario
from simserve.tables.columns import Flags, Floats, Ints
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

FEWEST = 200
"""Answered requests that a fit needs."""

BLOCKS = 10
"""Parts of a log in order of time; their errors count as independent."""

FLOOR_FRAC = {"tpot_s": 0.003, "ttft_s": 0.02}
"""Error of a group of requests that no constant explains: repeated runs on the same server differ by so much."""

LEAST_GAIN_FRAC = 0.03
"""Share by which another constant must lower the error of what is left out."""

LEAST_GAIN = 0.1
"""The least gain in units of the error of a group: less is noise."""

LEAST_GROUP = 50
"""Requests of a group, at least: which step a request meets is random."""

ROUNDS = 2
"""Times that the constants are fitted again at the end, as effects change with them."""

WAITING = 10.0
"""TTFT over that of a request that does not wait; beyond it TTFT and batch show the queue, not the host."""

CONFIDENCE = 0.95
DIGITS = 4

Progress = Callable[[str], None]


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


class Server:
    """The server of a scenario, with constants that may be changed."""

    def __init__(self, path: Path) -> None:
        """Load the scenario. Raises ScenarioError, and CalibrationError for pools that differ."""
        self.path = path
        self.scenario = self.with_constants({})
        kinds = {(setup.gpu.name, setup.engine.name, setup.engine.version) for setup in self.scenario.setups}
        if len(kinds) > 1 or any(pool.engine is not None for pool in self.scenario.cluster.pools):
            rule = "the pools must have one GPU and the engine of the scenario"
            raise CalibrationError(f"{path}: {rule}, got {len(self.scenario.setups)} pools; fit one kind at a time")
        self.setup = self.scenario.setups[0]

    @property
    def calibration(self) -> Path | None:
        """File with the kernels; None where they were timed on another GPU, or not at all."""
        named = self.scenario.cluster.pools[0].calibration
        return calibration_path(named.file) if self.setup.calibrated and named is not None else None

    def with_constants(self, constants: Mapping[str, float]) -> Scenario:
        """Return the scenario with these constants."""
        given = [f"engine.{name}={value!r}" for name, value in constants.items()]
        return load_scenario(self.path, overrides=(*STAND_IN, *given))


def fit_logs(logs: Sequence[Log], server: Server, progress: Progress | None = None) -> LogFit:
    """Return the constants that bring predictions closest to logs of the server. Deterministic.

    Raises CalibrationError for logs that are too short, saturated throughout, or of another server.
    """
    return _Fit(logs, server, progress or (lambda text: None)).result()


@dataclass(frozen=True)
class _Group:
    """Requests with a mean that is one observation."""

    log: int
    block: int
    metric: str
    rows: Ints
    weight: float
    """One over the error of the mean, as a share."""


Theta = Mapping[str, float]
Names = tuple[str, ...]


def _least_gain(score: float) -> float:
    return max(LEAST_GAIN_FRAC * score, LEAST_GAIN)


class _Fit:
    def __init__(self, logs: Sequence[Log], server: Server, progress: Progress) -> None:
        self.logs, self.server, self.progress = logs, server, progress
        engine = server.setup.engine
        given = server.scenario.engine.constants
        self.shipped = {
            name: float(value)
            for name in CANDIDATES
            if name not in given and (value := getattr(engine, name)) is not None
        }
        self.as_shipped = {name: "given by the scenario" for name in CANDIDATES if name in given}
        self.left_out: dict[str, int] = {}
        self.notes: list[str] = []
        self.replays = [self._replay(index, self.shipped) for index in range(len(logs))]
        self.groups = [each for index, replay in enumerate(self.replays) for each in self._groups(index, replay)]

    def result(self) -> LogFit:
        """Choose constants, fit them, and hold them against what was left out."""
        theta, chosen = dict(self.shipped), tuple[str, ...]()
        names = tuple(self.shipped)
        while True:
            base = self._predicted(theta)
            effects = self._effects(theta, base, names)
            names = tuple(name for name in names if effects[name].any())
            more = self._one_more(theta, base, effects, chosen)
            if more is None:
                break
            chosen = (*chosen, more)
            theta = self._solved(theta, base, effects, chosen, self._all)
            self.progress(", ".join(f"{name} {theta[name]:.3g}" for name in chosen))
        fewer = self._without_proxies(theta, base, effects, chosen)
        chosen, effective = (), set(names)
        while chosen != fewer:
            chosen = fewer
            for _ in range(ROUNDS):
                theta = self._solved(theta, base, effects, chosen, self._all)
                base = self._predicted(theta)
                effects = self._effects(theta, base, chosen)
            ends = self._intervals(theta, base, effects, chosen)
            fewer = tuple(name for name in chosen if not ends[name][0] <= self.shipped[name] <= ends[name][1])
        errors, parts = self._errors_left_out(theta, base, effects, chosen)
        score = {side: sum(getattr(errors[name], side) for name in errors) for side in ("shipped_frac", "fitted_frac")}
        if score["fitted_frac"] > score["shipped_frac"]:
            self.notes.append("fitted constants predict what was left out no better than the shipped ones, which stay")
            chosen = ()
            errors = {name: LeftOutError(each.shipped_frac, each.shipped_frac) for name, each in errors.items()}
        for name in self.shipped:
            if name not in chosen:
                no_gain = "does not lower the error of what is left out"
                why = no_gain if name in effective else "has no effect in these logs"
                self.as_shipped[name] = why
        intervals = self._intervals(theta, base, effects, chosen)
        return LogFit(
            self.server.setup,
            {name: FittedConstant(self.shipped[name], _rounded(theta[name]), *intervals[name]) for name in chosen},
            self.as_shipped,
            sum(len(rows) for rows in self._used.values()),
            self.left_out,
            errors,
            parts,
            tuple(self.notes),
        )

    # Observations

    def _replay(self, index: int, constants: Theta) -> ReplayedLog:
        changed = {name: value for name, value in constants.items() if value != self.shipped.get(name)}
        return replay_log(self.logs[index], self.server.with_constants(changed))

    def _groups(self, index: int, replay: ReplayedLog) -> Iterator[_Group]:
        """Yield the groups of a log, after leaving out what tells nothing about the host."""
        log = replay.log
        used = self._usable(replay)
        self._used[index] = np.flatnonzero(used)
        blocks = np.array_split(self._used[index], BLOCKS)
        features = {"tpot_s": replay.in_flight, "ttft_s": log.trace.prompt_tokens.astype(np.float64)}
        for block, rows in enumerate(blocks):
            for metric, feature in features.items():
                if metric not in log.measured:
                    continue
                known = rows[replay.compared(metric)[rows] & (log.measured[metric][rows] > 0)]
                if not len(known):
                    continue
                parts = [np.ones(len(known), np.bool_)]
                if feature is not None and len(known) >= 4 * LEAST_GROUP:
                    parts = quartiles(feature[known])
                for part in parts:
                    mine = known[part]
                    ratio = log.measured[metric][mine] / replay.predicted[metric][mine]
                    error = float(ratio.std() / ratio.mean()) / np.sqrt(len(mine)) if len(mine) > 1 else 1.0
                    yield _Group(index, block, metric, mine, 1 / np.hypot(error, FLOOR_FRAC[metric]))

    @cached_property
    def _used(self) -> dict[int, Ints]:
        return {}

    def _usable(self, replay: ReplayedLog) -> Flags:
        """Mark the requests that tell about the host. Raises CalibrationError where too few are left."""
        path = replay.log.place.path
        usable = replay.is_answered.copy()
        if np.count_nonzero(usable) < FEWEST:
            rule = f"a log needs at least {FEWEST} answered requests, got {np.count_nonzero(usable)}"
            raise CalibrationError(f"{path}: {rule}; log some ten minutes of traffic")
        fast, text = _beats_roofline(replay)
        if 2 * np.count_nonzero(fast) > np.count_nonzero(usable):
            raise CalibrationError(f"{path}: {text}")
        if fast.any():
            self.notes.append(f"{path}: {text}; left out")
            self._leave_out("faster than the data sheet allows", fast)
            usable &= ~fast
        waits = _waits(replay, usable)
        if waits[usable].all():
            rule = "must not be saturated throughout: its requests spend their time in the queue, not in the host"
            raise CalibrationError(f"{path}: {rule}; log a time with less load")
        if waits.any():
            self._leave_out("in parts of the log that wait in the queue", waits & usable)
            usable &= ~waits
        if np.count_nonzero(usable) < FEWEST:
            rule = f"a fit needs at least {FEWEST} requests that do not wait, got {np.count_nonzero(usable)}"
            raise CalibrationError(f"{path}: {rule}; log a longer time with less load")
        return usable

    def _leave_out(self, reason: str, rows: Flags) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + int(np.count_nonzero(rows))

    @cached_property
    def _all(self) -> Flags:
        return np.ones(len(self.groups), np.bool_)

    @cached_property
    def _measured(self) -> Floats:
        return np.array([self.logs[each.log].measured[each.metric][each.rows].mean() for each in self.groups])

    @cached_property
    def _weight(self) -> Floats:
        """One over the error of each observation, `(n_groups,)`."""
        return np.array([each.weight for each in self.groups]) / self._measured

    @cached_property
    def _share(self) -> Floats:
        """Share of each observation in the fit, `(n_groups,)`: both latencies count alike."""
        metric = np.array([each.metric for each in self.groups])
        return np.array([1 / np.count_nonzero(metric == each) for each in metric])

    def _predicted(self, theta: Theta) -> Floats:
        replays = [self._replay(index, theta) for index in range(len(self.logs))]
        return np.array([np.nanmean(replays[each.log].predicted[each.metric][each.rows]) for each in self.groups])

    def _effects(self, theta: Theta, base: Floats, names: Sequence[str]) -> dict[str, Floats]:
        """Return what a unit of each constant adds to the observations, `(n_groups,)` each."""
        effects = {}
        for name in names:
            step = CANDIDATES[name][0]
            changed = {**theta, name: theta[name] + step}
            effects[name] = (self._predicted(changed) - base) / step
            self.progress(f"effect of {name}")
        return effects

    # Least squares

    def _solved(
        self, theta: Theta, base: Floats, effects: Mapping[str, Floats], names: Sequence[str], rows: Flags
    ) -> dict[str, float]:
        """Return the constants that fit some of the observations best; others as shipped."""
        origin = self._at_shipped(theta, base, effects)
        if not names:
            return dict(self.shipped)
        scale = np.array([abs(CANDIDATES[name][0]) for name in names])
        weight = self._weight * np.sqrt(self._share)
        matrix = np.stack([effects[name] * weight for name in names], axis=1)[rows] * scale
        residual = ((self._measured - origin) * weight)[rows]
        low = np.array([CANDIDATES[name][1] - self.shipped[name] for name in names]) / scale
        high = np.array([CANDIDATES[name][2] - self.shipped[name] for name in names]) / scale
        from scipy.optimize import lsq_linear

        solution = lsq_linear(matrix, residual, (np.minimum(low, -1e-12), np.maximum(high, 1e-12))).x * scale
        moved = {name: self.shipped[name] + float(x) for name, x in zip(names, solution, strict=True)}
        return {**self.shipped, **{name: _at_bounds(name, value) for name, value in moved.items()}}

    def _at_shipped(self, theta: Theta, base: Floats, effects: Mapping[str, Floats]) -> Floats:
        """Return the observations with the shipped constants, by the effects measured at theta."""
        return base - sum((effects[name] * (theta[name] - self.shipped[name]) for name in effects), np.zeros(len(base)))

    def _one_more(self, theta: Theta, base: Floats, effects: Mapping[str, Floats], chosen: Names) -> str | None:
        """Return the constant that most lowers the error of left-out blocks; None where none lowers it enough."""
        best = self._score(theta, base, effects, chosen)
        others = [name for name in effects if name not in chosen and effects[name].any()]
        scores = {name: self._score(theta, base, effects, (*chosen, name)) for name in others}
        name = min(scores, key=lambda each: scores[each], default=None)
        return None if name is None or scores[name] > best - _least_gain(best) else name

    def _without_proxies(self, theta: Theta, base: Floats, effects: Mapping[str, Floats], chosen: Names) -> Names:
        """Return the constants without those that stood for others, and help no more beside them."""
        best = self._score(theta, base, effects, chosen)
        while chosen:
            without = {name: tuple(each for each in chosen if each != name) for name in chosen}
            scores = {name: self._score(theta, base, effects, names) for name, names in without.items()}
            name = min(scores, key=lambda each: scores[each])
            if scores[name] > best + _least_gain(best):
                break
            chosen = without[name]
        return chosen

    def _score(self, theta: Theta, base: Floats, effects: Mapping[str, Floats], names: Sequence[str]) -> float:
        """Return the mean size of weighted residuals of groups in blocks, each left out in turn."""
        origin, sizes = self._at_shipped(theta, base, effects), np.zeros(len(self.groups))
        for rows in self._folds(5):
            fitted = self._solved(theta, base, effects, names, ~rows)
            moved = origin + sum((effects[name] * (fitted[name] - self.shipped[name]) for name in names), 0.0)
            sizes[rows] = np.abs((self._measured - moved) * self._weight)[rows]
        return float(sizes @ self._share / self._share.sum())

    def _folds(self, n: int) -> list[Flags]:
        """Return the groups of each part that is left out: consecutive blocks of all logs, `(n_groups,)` each."""
        block = np.array([each.block for each in self.groups])
        return [(block >= first) & (block < last) for first, last in pairwise(np.linspace(0, BLOCKS, n + 1).round())]

    def _intervals(
        self, theta: Theta, base: Floats, effects: Mapping[str, Floats], names: Sequence[str]
    ) -> dict[str, tuple[float, float]]:
        """Return CONFIDENCE intervals: the jackknife over blocks."""
        without = [self._solved(theta, base, effects, names, ~rows) for rows in self._folds(BLOCKS)]
        half = quantile((1 + CONFIDENCE) / 2, BLOCKS - 1)
        result = {}
        for name in names:
            values = np.array([each[name] for each in without])
            error = float(np.sqrt((BLOCKS - 1) / BLOCKS * np.square(values - values.mean()).sum()))
            _, least, most = CANDIDATES[name]
            ends = theta[name] - half * error, theta[name] + half * error
            result[name] = _rounded(max(ends[0], least)), _rounded(min(ends[1], most))
        return result

    def _errors_left_out(
        self, theta: Theta, base: Floats, effects: Mapping[str, Floats], names: Sequence[str]
    ) -> tuple[dict[str, LeftOutError], str]:
        """Return the errors of parts that were replayed with constants fitted to the others: logs, or halves of one."""
        by_log = len(self.logs) > 1
        log = np.array([each.log for each in self.groups])
        folds = [log == index for index in range(len(self.logs))] if by_log else self._folds(2)
        sizes: dict[str, list[tuple[float, float]]] = {}
        for rows in folds:
            constants = self._solved(theta, base, effects, names, ~rows)
            for index in sorted(set(log[rows].tolist())):
                groups = [each for each, is_in in zip(self.groups, rows, strict=True) if is_in and each.log == index]
                mine = np.unique(np.concatenate([each.rows for each in groups]))
                sides = self.replays[index], self._replay(index, constants)
                for metric in sides[1].metrics:
                    known = mine[sides[0].compared(metric)[mine] & sides[1].compared(metric)[mine]]
                    if len(known):
                        measured = float(self.logs[index].measured[metric][known].mean())
                        shipped, fitted = (float(each.predicted[metric][known].mean()) for each in sides)
                        sizes.setdefault(metric, []).append((abs(shipped / measured - 1), abs(fitted / measured - 1)))
        errors = {name: LeftOutError(*np.mean(values, axis=0).tolist()) for name, values in sizes.items()}
        return errors, f"{len(folds)} logs" if by_log else "halves of the log"


def _beats_roofline(replay: ReplayedLog) -> tuple[Flags, str]:
    """Mark requests that no server of this scenario can answer so fast, and say what would explain them."""
    log, setup = replay.log, replay.scenario.setups[-1]
    early, quick, floor_s = np.zeros(len(log), np.bool_), np.zeros(len(log), np.bool_), 0.0
    least_s = (log.trace.prompt_tokens - replay.results.columns["requests"]["cached_tokens"]) * replay.token_floor_s
    if "ttft_s" in log.measured:
        early = log.measured["ttft_s"] < least_s
    if "tpot_s" in log.measured and setup.speculation is None:
        work = setup.step_cost().work
        floor_s = work.weight_bytes_per_step / work.hbm_bytes_per_s
        quick = log.measured["tpot_s"] < floor_s
    rows = np.flatnonzero(early | quick)
    if not len(rows):
        return early, ""
    shown = ", ".join(str(log.place.numbers[row]) for row in rows[:3].tolist()) + (", ..." if len(rows) > 3 else "")
    texts = []
    if early.any():
        least = float((log.measured["ttft_s"][early] / least_s[early]).min())
        texts.append(
            f"TTFT of {np.count_nonzero(early)} is down to {least:.0%} of computing the prompt at peak (were prompts "
            "cached? add hash_ids and hash_block_tokens)"
        )
    if quick.any():
        least = float(log.measured["tpot_s"][quick].min() / floor_s)
        texts.append(
            f"TPOT of {np.count_nonzero(quick)} is down to {least:.0%} of reading the weights once (another model, "
            "weight_dtype or number of GPUs? speculation?)"
        )
    what = f"{len(rows)} of {len(log)} requests beat the bare roofline of the scenario ({log.place.word} {shown})"
    return early | quick, f"{what}: {'; '.join(texts)}"


def _waits(replay: ReplayedLog, usable: Flags) -> Flags:
    """Mark the blocks in which the middle request waits most of its TTFT, `(n_requests,)`."""
    log, waits = replay.log, np.zeros(len(replay.log), np.bool_)
    if "ttft_s" not in log.measured:
        return waits
    requests = replay.results.columns["requests"]
    alone_s = requests["ttft_s"] - requests["queue_s"]
    for rows in np.array_split(np.flatnonzero(usable), BLOCKS):
        known = rows[~np.isnan(log.measured["ttft_s"][rows]) & ~np.isnan(alone_s[rows])]
        if len(known):
            waits[rows] = np.median(log.measured["ttft_s"][known]) > WAITING * np.median(alone_s[known])
    return waits


def _at_bounds(name: str, value: float) -> float:
    """Return a bound where the solver stopped next to it."""
    step, *bounds = CANDIDATES[name]
    return next((bound for bound in bounds if abs(value - bound) < 1e-6 * abs(step)), value)


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


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
