"""Fit a card without timed kernels to serving runs: few factors on the kernels of the card that it resembles."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from simserve.cost.calibration import FORMS, calibration_path, launch_factor, nearest, read_calibration, release
from simserve.errors import CalibrationError
from simserve.input_files import read_json
from simserve.lab.card_runs import Run
from simserve.lab.fit import EVERYTHING, Fit, Parameter, Progress, Rows, Theta, rounded
from simserve.tables.columns import Flags, Floats
from simserve.tables.files import json_text

FACTORS: Mapping[str, tuple[str, ...]] = {
    "matrices": ("gemm", "moe"),
    "attention": ("prefill_attention", "decode_attention", "mla_prefill", "mla_decode"),
    "collectives": ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    "launches": (),
}
"""Operations with work that each factor slows; launches: what kernels take whatever their work, and gaps."""

APART = ("matrices", "launches")
"""Factors that runs with prefill and decode apart may tell, as their TTFT has the hand-over in it."""

ANY_VERSION = "0"
"""Version of launches of runs that do not all name theirs."""

BOUNDS = (0.2, 10.0)
"""Least and most of a factor: beyond them it stands for another cost."""

STEP_FRAC = 0.1
"""Change of a factor in the replay that shows its effect, as a share."""

RUNS_PER_FACTOR = 4
"""Runs that each fitted factor needs."""

LEAST_PARTS = 3
"""Parts of the runs, each left out in turn."""

WEIGHTS = {"tpot_s": 1.0, "ttft_s": 0.2}
"""Shares of an error in the fit: servers left out of a fit are off by 2.5% in TPOT, by 13% in TTFT."""


@dataclass(frozen=True)
class FittedFactor:
    """A factor on the kernels of another card; low and high: the ends of fits that each leave a part out."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LeftOutRuns:
    """Mean absolute errors over the runs, each predicted by a fit without its part."""

    scaled_frac: float
    """Error of kernels scaled by the data sheet alone."""
    fitted_frac: float
    spread: float
    """Root mean square of the log ratios of the fitted ones."""


@dataclass(frozen=True)
class CardFit:
    """Factors by name, those of launches by version, and what they are worth."""

    base: str
    """The calibration with the kernels that the factors slow."""
    fitted: Mapping[str, FittedFactor]
    as_scaled: Mapping[str, str]
    """Why each other factor stays 1."""
    errors: Mapping[str, LeftOutRuns]
    parts: tuple[str, ...]
    versions: tuple[str, ...]
    """Versions with launches of their own, the newest last."""


def fit_card(runs: Sequence[Run], base: str, factors: Sequence[str], progress: Progress | None = None) -> CardFit:
    """Return the factors on the kernels of `base` that bring predictions closest. Deterministic.

    Raises CalibrationError where the runs cannot tell any.
    """
    with TemporaryDirectory() as folder:
        return _FactorFit(runs, base, factors, Path(folder), progress).result()


class _FactorFit(Fit):
    """Observations are latencies of runs; one factor, launches, has a parameter for each version of the engine."""

    rounds = 3

    def __init__(
        self, runs: Sequence[Run], base: str, factors: Sequence[str], folder: Path, progress: Progress | None
    ) -> None:
        self.runs, self.base_name, self.folder, self.n_files = runs, base, folder, 0
        self.data = read_json(calibration_path(base))
        named = {run.version for run in runs}
        by_version = len(named) > 1 and all(len(release(each)) == 3 for each in named)
        self.versions = tuple(sorted(named, key=release)) if by_version else ()
        keys = [key for name in FACTORS for key in self.keys(name)]
        super().__init__(factors, {key: Parameter(1.0, *BOUNDS) for key in keys}, progress)
        self.most_chosen = len(runs) // RUNS_PER_FACTOR
        self.observed = [(place, metric) for place, run in enumerate(runs) for metric in run.measured_s]
        self.measured = np.array([runs[place].measured_s[metric] for place, metric in self.observed])
        self.weight = np.array([WEIGHTS[metric] for _, metric in self.observed]) / self.measured
        self.share = np.ones(len(self.observed))
        part_of = [run.part(_part_keys(runs)) for run in runs]
        self.part_names = tuple(sorted(set(part_of)))
        self.parts = [np.array([part_of[place] == each for place, _ in self.observed]) for each in self.part_names]

    def result(self) -> CardFit:
        """Choose factors, fit them, and hold them against what was left out."""
        asked, scaled = tuple(self.names), self.replayed(self.theta)
        self.choose()
        self.refine()
        as_scaled = self._as_scaled(asked)
        if not self.chosen:
            raise CalibrationError(f"these runs tell no factor of {', '.join(as_scaled)}; the scaled kernels stay")
        thetas = [self.solved(self.chosen, ~part) for part in self.parts]
        errors = self._errors(scaled, thetas)
        if sum(each.fitted_frac for each in errors.values()) >= sum(each.scaled_frac for each in errors.values()):
            rule = "fitted factors predict what was left out no better than the data sheet"
            raise CalibrationError(f"{rule}; the scaled kernels stay")
        fitted = {
            key: FittedFactor(
                *map(rounded, (self.theta[key], *(end(each[key] for each in thetas) for end in (min, max))))
            )
            for key in self.keys_of(self.chosen)
        }
        return CardFit(self.base_name, fitted, as_scaled, errors, self.part_names, self.versions)

    def _as_scaled(self, asked: Sequence[str]) -> dict[str, str]:
        """Say why each factor that is not chosen stays 1."""
        why = {name: "not fitted to runs with prefill and decode apart" for name in FACTORS if name not in asked}
        why |= {name: "has no effect in these runs" for name in asked if name not in self.names}
        n_needed = RUNS_PER_FACTOR * (len(self.chosen) + 1)
        few = f"{n_needed} runs would be needed, there are {len(self.runs)}"
        no_gain = few if len(self.runs) < n_needed else "does not lower the error of what is left out"
        return why | {name: no_gain for name in self.names if name not in self.chosen}

    def keys(self, name: str) -> list[str]:
        """Return the parameters of a factor: launches have one for each version."""
        return [f"{name} {each}" for each in self.versions] if name == "launches" and self.versions else [name]

    def step(self, key: str) -> float:
        """Return the change of a factor in the replay that shows its effect."""
        return self.theta[key] * STEP_FRAC

    def is_of(self, key: str) -> Flags:
        """Mark the runs of a version, or all."""
        return np.array([_version_of(key) in ("", self.runs[place].version) for place, _ in self.observed])

    def replayed(self, theta: Theta, places: Sequence[int] | None = None) -> Floats:
        """Return what each observation should be; only of some runs, others are NaN."""
        self.n_files += 1
        path = self.folder / f"{self.n_files}.json"  # a file is read once
        path.write_text(json_text(content(self.data, self.runs[0].gpu, theta, self.versions)))
        wanted = range(len(self.runs)) if places is None else places
        times = {place: self.runs[place].replay(path) for place in wanted}
        return np.array([times[place][metric] if place in times else np.nan for place, metric in self.observed])

    def solved(self, names: Sequence[str], rows: Rows = EVERYTHING) -> dict[str, float]:
        """Return the factors that fit best; versions without any runs take launches of the nearest."""
        result = super().solved(names, rows)
        if "launches" in names and self.versions:
            free = self.free(["launches"], rows)
            fitted = {_version_of(key): result[key] for key in free}
            others = [key for key in self.keys("launches") if key not in free]
            result |= {key: launch_factor(fitted, _version_of(key)) for key in others}
        return result

    def _errors(self, scaled: Floats, thetas: Sequence[Theta]) -> dict[str, LeftOutRuns]:
        """Return the errors of runs that were replayed with factors fitted without their part."""
        fitted = np.full(len(self.observed), np.nan)
        for part, theta in zip(self.parts, thetas, strict=True):
            places = sorted({place for (place, _), is_in in zip(self.observed, part, strict=True) if is_in})
            fitted[part] = self.replayed(theta, places)[part]
        errors = {}
        for metric in WEIGHTS:
            mine = np.array([each == metric for _, each in self.observed])
            if mine.any():
                before, after = (each[mine] / self.measured[mine] for each in (scaled, fitted))
                sizes = np.abs(before - 1).mean(), np.abs(after - 1).mean(), np.sqrt(np.square(np.log(after)).mean())
                errors[metric] = LeftOutRuns(*(rounded(float(size)) for size in sizes))
        return errors


def _version_of(key: str) -> str:
    return key.partition(" ")[2]


def _part_keys(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return what tells apart the parts that are left out: model and parallelism, else version and lengths, too."""
    for keys in (("server",), ("server", "version", "lengths")):
        if len({run.part(keys) for run in runs}) >= LEAST_PARTS:
            return keys
    rule = f"runs of at least {LEAST_PARTS} models, splits, versions or lengths are needed to leave one out"
    raise CalibrationError(f"{rule}; add runs of others")


def factors_for(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the factors that runs may tell: where prefill and decode are apart, those of matrices and launches."""
    return APART if any(run.is_disaggregated for run in runs) else tuple(FACTORS)


def base_of(gpu: str, engine: str, donor: str | None) -> str:
    """Name the timed calibration that is scaled to a card. Raises CalibrationError for a card with its own."""
    name = nearest(gpu, engine, donor)
    if read_calibration(calibration_path(name)).runs is not None:
        name = nearest(gpu, engine, donor, own=False)
    if name == f"{gpu}/{engine}":
        rule = f"{name} has timed kernels, which serving runs do not replace"
        raise CalibrationError(f"{rule}; fit the engine's host with --host or --logs")
    return name


def content(base: Mapping[str, Any], gpu: str, theta: Theta, versions: Sequence[str]) -> dict[str, Any]:
    """Return a calibration of a card: kernels of another with the factors on their work, and launches by version."""
    slow = {op: theta.get(name, 1.0) for name, ops in FACTORS.items() for op in ops}
    kernels = []
    for row in base["kernels"]:
        form = FORMS[row["op"]](**row["coefficients"]).slowed(slow[row["op"].removesuffix("_module")])
        kernels.append({**row, "coefficients": {name: rounded(value) for name, value in asdict(form).items()}})
    before = launch_factor(base.get("launches", {}), "")
    named = {each: f"launches {each}" for each in versions} or {ANY_VERSION: "launches"}
    launches = {each: rounded(before * theta.get(key, 1.0)) for each, key in named.items()}
    return {**base, "gpu": gpu, "kernels": kernels, "host": {}, "launches": launches}


def card_data(fit: CardFit, runs: Sequence[Run], files: Sequence[Mapping[str, Any]], unused: Theta) -> dict[str, Any]:
    """Return the content of the file; files: the tables with their SHA-256; unused: rows of these by reason."""
    path = calibration_path(fit.base)
    base = read_json(path)
    theta = {name: each.value for name, each in fit.fitted.items()}
    section = {
        "n_rows": len(runs),
        "models": sorted({run.model for run in runs}),
        "files": list(files),
        "unused": dict(unused),
        "kernels_of": {"name": fit.base, "sha256": read_calibration(path).sha256},
        "fitted": {name: asdict(each) for name, each in fit.fitted.items()},
        "as_scaled": dict(fit.as_scaled),
        "left_out": {"parts": list(fit.parts), "errors": {name: asdict(each) for name, each in fit.errors.items()}},
    }
    data = content(base, runs[0].gpu, theta, fit.versions)
    made = {key: value for key, value in base["made"].items() if key != "date"}
    return {**data, "made": made, "runs": section}
