"""Fit a card without timed kernels to serving runs: few factors on the kernels of the card that it resembles.

A replay of each run tells how long it should take, and replays with one factor changed tell what that factor adds.
Least squares over the runs then give the factors. One is added after the other, the one that helps most first, as long
as parts of the runs that were left out are predicted better.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from simserve.cost.calibration import calibration_path, launch_factor, release
from simserve.errors import CalibrationError
from simserve.input_files import read_json
from simserve.lab.card_factors import FACTORS, CardFit, FittedFactor, LeftOutRuns, Theta, content, rounded
from simserve.lab.card_runs import Run
from simserve.tables.columns import Flags, Floats
from simserve.tables.files import json_text

BOUNDS = (0.2, 10.0)
"""Least and most of a factor: beyond them it stands for another cost."""

STEP = 1.1
"""Change of a factor in the replay that shows its effect."""

RUNS_PER_FACTOR = 4
"""Runs that each fitted factor needs."""

LEAST_PARTS = 3
"""Parts of the runs, each left out in turn."""

WEIGHTS = {"tpot_s": 1.0, "ttft_s": 0.2}
"""Shares of an error in the fit: servers left out of a fit are off by 2.5% in TPOT, by 13% in TTFT."""

LEAST_GAIN_FRAC = 0.03
"""Share by which another factor must lower the error of what is left out."""

ROUNDS = 3
"""Times that the factors are fitted again at the end, as effects change with them."""

Progress = Callable[[str], None]


def fit_card(runs: Sequence[Run], base: str, factors: Sequence[str], progress: Progress | None = None) -> CardFit:
    """Return the factors on the kernels of `base` that bring predictions closest. Deterministic.

    Raises CalibrationError where the runs cannot tell any.
    """
    with TemporaryDirectory() as folder:
        return _FactorFit(runs, base, factors, Path(folder), progress or (lambda text: None)).result()


class _FactorFit:
    def __init__(
        self, runs: Sequence[Run], base: str, factors: Sequence[str], folder: Path, progress: Progress
    ) -> None:
        self.base, self.folder, self.progress = base, folder, progress
        self.data = read_json(calibration_path(base))
        self.runs, self.factors, self.n_files = runs, factors, 0
        named = {run.version for run in runs}
        by_version = len(named) > 1 and all(len(release(each)) == 3 for each in named)
        self.versions = tuple(sorted(named, key=release)) if by_version else ()
        self.observed = [(place, metric) for place, run in enumerate(runs) for metric in run.measured_s]
        self.measured = np.array([runs[place].measured_s[metric] for place, metric in self.observed])
        self.weight = np.array([WEIGHTS[metric] for _, metric in self.observed]) / self.measured
        self.parts = _parts(runs)
        self.folds = [
            np.array([runs[place].part(self.parts) == each for place, _ in self.observed]) for each in self._names()
        ]

    def _names(self) -> list[str]:
        return sorted({run.part(self.parts) for run in self.runs})

    def result(self) -> CardFit:
        """Choose factors, fit them, and hold them against what was left out."""
        names = [*self.factors]
        theta: Theta = {key: 1.0 for name in FACTORS for key in self._keys(name)}
        scaled = base = self._predicted(theta)
        chosen: tuple[str, ...] = ()
        as_scaled = {name: "not fitted to runs with prefill and decode apart" for name in FACTORS if name not in names}
        while True:
            effects = self._effects(theta, base, names)
            for name in [each for each in names if not any(effects[key].any() for key in self._keys(each))]:
                as_scaled[name] = "has no effect in these runs"
                names.remove(name)
            more = self._one_more(theta, base, effects, names, chosen)
            if more is None:
                break
            chosen = (*chosen, more)
            theta = self._solved(theta, base, effects, chosen, self._all)
            base = self._predicted(theta)
            self.progress(", ".join(f"{key} {theta[key]:.3g}" for name in chosen for key in self._keys(name)))
        for _ in range(ROUNDS):
            theta = self._solved(theta, base, effects, chosen, self._all)
            base = self._predicted(theta)
            effects = self._effects(theta, base, chosen)
        few = len(self.runs) < RUNS_PER_FACTOR * (len(chosen) + 1)
        need = f"{RUNS_PER_FACTOR * (len(chosen) + 1)} runs would be needed, there are {len(self.runs)}"
        for name in names:
            if name not in chosen:
                as_scaled[name] = need if few else "does not lower the error of what is left out"
        if not chosen:
            raise CalibrationError(f"these runs tell no factor of {', '.join(as_scaled)}; the scaled kernels stay")
        thetas = [self._solved(theta, base, effects, chosen, ~fold) for fold in self.folds]
        errors = self._errors(scaled, thetas)
        before, after = (
            sum(getattr(each, side) for each in errors.values()) for side in ("scaled_frac", "fitted_frac")
        )
        if after >= before:
            rule = "fitted factors predict what was left out no better than the data sheet"
            raise CalibrationError(f"{rule}; the scaled kernels stay")
        keys = [key for name in chosen for key in self._keys(name)]
        fitted = {
            key: FittedFactor(
                rounded(theta[key]), *(rounded(end([each[key] for each in thetas])) for end in (min, max))
            )
            for key in keys
        }
        return CardFit(self.base, fitted, as_scaled, errors, tuple(self._names()), self.versions)

    def _keys(self, name: str) -> list[str]:
        """Return the parameters of a factor: launches have one for each version."""
        return [f"{name} {each}" for each in self.versions] if name == "launches" and self.versions else [name]

    @property
    def _all(self) -> Flags:
        return np.ones(len(self.observed), np.bool_)

    def _predicted(self, theta: Theta, places: Sequence[int] | None = None) -> Floats:
        """Return what each observation should be; only of some runs, others are NaN."""
        self.n_files += 1
        path = self.folder / f"{self.n_files}.json"  # a file is read once
        gpu = self.runs[0].gpu
        path.write_text(json_text(content(self.data, gpu, theta, self.versions)))
        wanted = range(len(self.runs)) if places is None else places
        times = {place: self.runs[place].replay(path) for place in wanted}
        return np.array([times[place][metric] if place in times else np.nan for place, metric in self.observed])

    def _effects(self, theta: Theta, base: Floats, names: Sequence[str]) -> dict[str, Floats]:
        """Return what a unit of each parameter adds to the observations, `(n_observed,)` each."""
        effects = {}
        for name in names:
            keys = self._keys(name)
            moved = self._predicted({**theta, **{key: theta[key] * STEP for key in keys}}) - base
            for key in keys:
                mine = np.array([key in (name, f"{name} {self.runs[place].version}") for place, _ in self.observed])
                effects[key] = np.where(mine, moved / (theta[key] * (STEP - 1)), 0.0)
        return effects

    def _solved(
        self, theta: Theta, base: Floats, effects: Mapping[str, Floats], names: Sequence[str], rows: Flags
    ) -> dict[str, float]:
        """Return the factors that fit some of the observations best; versions without any take those of the nearest."""
        from scipy.optimize import lsq_linear

        keys = [key for name in names for key in self._keys(name)]
        free = [key for key in keys if effects[key][rows].any()]
        result = dict.fromkeys(theta, 1.0)
        if free:
            origin = base - sum((effects[key] * theta[key] for key in free), np.zeros(len(base)))
            matrix = np.stack([effects[key] * self.weight for key in free], axis=1)[rows]
            residual = ((self.measured - origin) * self.weight)[rows]
            values = lsq_linear(matrix, residual, BOUNDS).x
            result |= dict(zip(free, map(float, values), strict=True))
        fitted = {key.removeprefix("launches "): result[key] for key in free if key.startswith("launches ")}
        for key in keys:
            if key not in free and key.startswith("launches "):
                result[key] = launch_factor(fitted, key.removeprefix("launches "))
        return result

    def _one_more(
        self, theta: Theta, base: Floats, effects: Mapping[str, Floats], names: Sequence[str], chosen: Sequence[str]
    ) -> str | None:
        """Return the factor that most lowers the error of left-out parts; None where none lowers it enough."""
        others = [name for name in names if name not in chosen]
        if not others or len(self.runs) < RUNS_PER_FACTOR * (len(chosen) + 1):
            return None
        scores = {name: self._score(theta, base, effects, (*chosen, name)) for name in others}
        name = min(scores, key=lambda each: scores[each])
        return name if scores[name] < (1 - LEAST_GAIN_FRAC) * self._score(theta, base, effects, chosen) else None

    def _score(self, theta: Theta, base: Floats, effects: Mapping[str, Floats], names: Sequence[str]) -> float:
        """Return the mean weighted error of parts that are left out in turn."""
        sizes = np.zeros(len(base))
        for fold in self.folds:
            fitted = self._solved(theta, base, effects, names, ~fold)
            keys = [key for name in names for key in self._keys(name)]
            moved = base + sum((effects[key] * (fitted[key] - theta[key]) for key in keys), np.zeros(len(base)))
            sizes[fold] = np.abs((moved - self.measured) * self.weight)[fold]
        return float(sizes.mean())

    def _errors(self, scaled: Floats, thetas: Sequence[Theta]) -> dict[str, LeftOutRuns]:
        """Return the errors of runs that were replayed with factors fitted without their part."""
        fitted = np.full(len(self.observed), np.nan)
        for fold, theta in zip(self.folds, thetas, strict=True):
            places = sorted({place for (place, _), is_in in zip(self.observed, fold, strict=True) if is_in})
            fitted[fold] = self._predicted(theta, places)[fold]
        errors = {}
        for metric in WEIGHTS:
            mine = np.array([each == metric for _, each in self.observed])
            if mine.any():
                before, after = (each[mine] / self.measured[mine] for each in (scaled, fitted))
                sizes = np.abs(before - 1).mean(), np.abs(after - 1).mean(), np.sqrt(np.square(np.log(after)).mean())
                errors[metric] = LeftOutRuns(*(rounded(float(size)) for size in sizes))
        return errors


def _parts(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return what tells apart the parts that are left out: model and parallelism, else version and lengths, too."""
    for keys in (("server",), ("server", "version", "lengths")):
        if len({run.part(keys) for run in runs}) >= LEAST_PARTS:
            return keys
    rule = f"runs of at least {LEAST_PARTS} models, splits, versions or lengths are needed to leave one out"
    raise CalibrationError(f"{rule}; add runs of others")
