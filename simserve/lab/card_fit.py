"""Fit a card without timed kernels to serving runs: few factors on the kernels of the card that it resembles."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from simserve.cost.calibration import calibration_path, launch_factor, release
from simserve.errors import CalibrationError
from simserve.input_files import read_json
from simserve.lab.campaigns import Campaign, run_of
from simserve.lab.fit import EVERYTHING, Fit, Parameter, Progress, Rows, Theta, rounded
from simserve.lab.host_fit import TTFT_IS_USABLE
from simserve.lab.inferencex import CAMPAIGN, run_of_setting
from simserve.lab.run_tables import read_rows
from simserve.lab.runs import MeasuredRun, accepted, predict, replay
from simserve.lab.settings_table import is_table_of_settings, read_settings
from simserve.lab.write import FACTORS, CardFit, FittedFactor, LeftOutRuns, card_content
from simserve.tables.columns import Flags, Floats
from simserve.tables.files import json_text

APART = ("matrices", "launches")
"""Factors that runs with prefill and decode apart may tell, as their TTFT has the hand-over in it."""

MOST_IN_FLIGHT = 300
"""Requests in flight of a setting, at most: servers of more lose time in other places than kernels."""

DISAGGREGATED_REQUESTS = 2
"""Requests per client in replays of disaggregated settings, which take long."""

BOUNDS = (0.2, 10.0)
"""Least and most of a factor: beyond them it stands for another cost."""

STEP_FRAC = 0.1
"""Change of a factor in the replay that shows its effect, as a share."""

RUNS_PER_FACTOR = 4
"""Runs that each fitted factor needs."""

LATENCIES = {"tpot": "tpot_s", "ttft": "ttft_s", "median_ttft": "ttft_s"}
"""Latencies by what was measured of them."""

LEAST_PARTS = 3
"""Parts of the runs, each left out in turn."""

WEIGHTS = {"tpot_s": 1.0, "ttft_s": 0.2}
"""Shares of an error in the fit: servers left out of a fit are off by 2.5% in TPOT, by 13% in TTFT."""


def read_runs(path: Path, gpu: str, engine: str, campaign: Campaign) -> tuple[list[MeasuredRun], dict[str, int]]:
    """Return the runs of an engine on a card with the latencies that reflect kernels, and how many others there are by
    reason. Raises CalibrationError."""
    left_out: dict[str, int] = {}
    if is_table_of_settings(path):
        settings, left_out = read_settings(path)
        own = [each for each in settings if (each.gpu, each.engine) == (gpu, engine)]
        n_others = len(settings) - len(own)
        in_flight = [each for each in own if each.concurrency <= MOST_IN_FLIGHT]
        of_kernels = [each for each in in_flight if all("data" not in side.parallel for side in each.sides)]
        n_requests = {True: DISAGGREGATED_REQUESTS, False: CAMPAIGN.requests_per_client}
        runs = [_with(run_of_setting(each, n_requests[len(each.sides) > 1]), "median_ttft") for each in of_kernels]
        left_out[f"more than {MOST_IN_FLIGHT} in flight, or ranks that wait for each other"] = len(own) - len(runs)
    else:
        rows = read_rows(path)
        replayed = replay([run_of(row, campaign) for row in rows if (row.gpu, row.engine) == (gpu, engine)])
        n_others = len(rows) - len(replayed)
        runs = [_with(each.run, "ttft") for each in replayed if not each.is_limited_by_memory]
        left_out["limited by the KV cache"] = len(replayed) - len(runs)
    left_out["of other cards or engines"] = n_others
    if not runs:
        rule = f"must have runs of {engine} on {gpu} that tell the time of kernels"
        raise CalibrationError(f"{path}: {rule}, got none; give runs of this card, or another GPU")
    return runs, {reason: n for reason, n in left_out.items() if n}


def _with(run: MeasuredRun, ttft: str) -> MeasuredRun:
    """Return a run with TPOT, and with this TTFT where it reflects kernels: without hand-overs."""
    is_told = run.engine in TTFT_IS_USABLE and not run.is_disaggregated
    return replace(run, measured_s={name: run.measured_s[name] for name in ("tpot", *([ttft] if is_told else []))})


def fit_card(
    runs: Sequence[MeasuredRun], base: str, factors: Sequence[str], progress: Progress | None = None
) -> CardFit:
    """Return the factors on the kernels of `base` that bring predictions closest. Deterministic. Raises
    CalibrationError where the runs cannot tell any."""
    with TemporaryDirectory() as folder:
        return _FactorFit(runs, base, factors, Path(folder), progress).result()


class _FactorFit(Fit):
    """Observations are latencies of runs; one factor, launches, has a parameter for each version of the engine."""

    rounds = 3

    def __init__(
        self, runs: Sequence[MeasuredRun], base: str, factors: Sequence[str], folder: Path, progress: Progress | None
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
        self.weight = np.array([WEIGHTS[LATENCIES[metric]] for _, metric in self.observed]) / self.measured
        self.share = np.ones(len(self.observed))
        part_of = _parts_of(runs)
        self.part_names = tuple(sorted(set(part_of)))
        self.parts = [np.array([part_of[place] == each for place, _ in self.observed]) for each in self.part_names]

    def result(self) -> CardFit:
        """Choose factors, fit them, and hold them against what was left out."""
        offered, scaled = tuple(self.names), self.replayed(self.theta)
        self.choose()
        self.refine()
        as_scaled = self._as_scaled(offered)
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

    def _as_scaled(self, offered: Sequence[str]) -> dict[str, str]:
        """Say why each factor that is not chosen stays 1."""
        why = {name: "not fitted to runs with prefill and decode apart" for name in FACTORS if name not in offered}
        why |= {name: "has no effect in these runs" for name in offered if name not in self.names}
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
        path.write_text(json_text(card_content(self.data, self.runs[0].gpu, theta, self.versions)))
        wanted = range(len(self.runs)) if places is None else places
        times = {place: accepted(predict(self.runs[place], calibration=path)) for place in wanted}
        return np.array([times[place].mean_s(metric) if place in times else np.nan for place, metric in self.observed])

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
            mine = np.array([LATENCIES[each] == metric for _, each in self.observed])
            if mine.any():
                before, after = (each[mine] / self.measured[mine] for each in (scaled, fitted))
                sizes = np.abs(before - 1).mean(), np.abs(after - 1).mean(), np.sqrt(np.square(np.log(after)).mean())
                errors[metric] = LeftOutRuns(*(rounded(float(size)) for size in sizes))
        return errors


def _version_of(key: str) -> str:
    return key.partition(" ")[2]


def _parts_of(runs: Sequence[MeasuredRun]) -> list[str]:
    """Name the part that each run is left out with: model and parallelism, else version and lengths, too."""
    by_server = [run.server for run in runs]
    by_all = [f"{run.server} {run.version} {run.isl}/{run.osl}" for run in runs]
    for parts in (by_server, by_all):
        if len(set(parts)) >= LEAST_PARTS:
            return parts
    rule = f"runs of at least {LEAST_PARTS} models, splits, versions or lengths are needed to leave one out"
    raise CalibrationError(f"{rule}; add runs of others")


def factors_for(runs: Sequence[MeasuredRun]) -> tuple[str, ...]:
    """Return the factors that runs may tell: where prefill and decode are apart, those of matrices and launches."""
    return APART if any(run.is_disaggregated for run in runs) else tuple(FACTORS)
