"""Estimate how far servers are off that no constant was fitted to, from whole groups of runs that were left out.

A group is the runs of an engine, model, card and split. The variance of its log ratios, measured over predicted, is
that of perturbed costs, that of servers like the fitted ones, and one part for each fact that is true of it. The parts
are those of highest likelihood, each group counting once. Each group is then held against intervals with parts that
were estimated without it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import hypot, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import CalibrationError
from simserve.lab.fit import rounded
from simserve.lab.host_fit import TTFT_IS_USABLE
from simserve.lab.league import data_set_of
from simserve.lab.public import FILE, silicon_path
from simserve.lab.runs import Prediction
from simserve.lab.server_logs import LOGS
from simserve.lab.write import source_of
from simserve.metrics.student import quantile
from simserve.scenario.server_errors import METRICS, REASONS, SCHEMA, WITHIN_SD, FittedServers, facts_of
from simserve.study.cost_draws import CONFIDENCE, REPLAYS, normal_scores
from simserve.tables.columns import Floats

START_SD, ROUNDS = 0.2, 3000
"""Start of each part, and steps towards the highest likelihood, each of which raises it."""

DIGITS = 3

LEAST_GROUPS = 5
"""Groups for an estimate."""

NEGLIGIBLE_SD = 0.005
"""Parts below do not show beside those that every server has."""


@dataclass(frozen=True)
class Observed:
    """A latency of a run that was left out of all fits."""

    group: tuple[str, ...]
    facts: frozenset[str]
    log_ratio: float
    """Logarithm of measured over predicted."""
    costs_sd: float


@dataclass(frozen=True)
class SpreadFit:
    """The parts of one latency, and how often intervals held runs of groups that were left out."""

    n_runs: int
    n_groups: int
    sd: Mapping[str, float]
    """Standard deviations by fact."""
    held_frac: float
    """Share of runs, each predicted without its group."""
    held_of_groups_frac: float
    """Share of runs with each group counting once."""
    held_before_frac: float
    """Share of runs in intervals without these parts."""


def data_of(folder: Path, runs: Sequence[Prediction], most: int | None) -> tuple[dict[str, Any], dict[str, SpreadFit]]:
    """Return the content of the file, and the fits by METRICS; most: runs of each data set. Raises CalibrationError for
    too few groups."""
    predicted = [run for run in runs if run.predicted_s is not None]
    fits = {metric: fit_spread(observed(predicted, metric), metric) for metric in METRICS}
    calibrations = [setup.calibration for each in predicted for setup in each.setups if setup.calibration is not None]
    used = {f"{calibration.gpu}/{calibration.engine}": calibration.sha256 for calibration in calibrations}
    made = {
        "files": [
            source_of(path) for name in sorted({each.run.source for each in predicted}) for path in _paths(folder, name)
        ],
        "most_runs_of_a_set": most,
        "calibrations": dict(sorted(used.items())),
    }
    fitted = [asdict(each) for each in fitted_servers(predicted)]
    metrics = {metric: asdict(fit) for metric, fit in fits.items()}
    return {"schema": SCHEMA, "made": made, "fitted": fitted, "metrics": metrics}, fits


def _paths(folder: Path, name: str) -> list[Path]:
    if name == LOGS:
        return sorted(path for path in (folder / LOGS).iterdir() if path.is_file())
    if name == FILE:
        return [silicon_path()]
    return [folder / "serving" / name]


def fitted_servers(runs: Sequence[Prediction]) -> list[FittedServers]:
    """Return the groups that host constants were fitted to, with the latencies that the fit used."""
    groups = {
        FittedServers(
            setup.engine.name,
            setup.engine.constants_of,
            setup.gpu.name,
            setup.model.name,
            setup.weight_dtype,
            ("tpot_s", "ttft_s") if setup.engine.name in TTFT_IS_USABLE else ("tpot_s",),
        )
        for run in runs
        if _is_fitted(run)
        for setup in run.setups
    }
    return sorted(groups, key=lambda each: (each.engine, each.gpu, each.model, each.weight_dtype, each.version))


def _is_fitted(prediction: Prediction) -> bool:
    """Tell whether host constants were fitted to a run; a card's factors are left out of its predictions."""
    timed = all(setup.calibration is not None and setup.calibrated for setup in prediction.setups)
    return data_set_of(prediction.run).knowledge.in_sample == "yes" and timed


def observed(predictions: Sequence[Prediction], metric: str) -> list[Observed]:
    """Return a latency of the runs that no fit used it of."""
    name = metric.removesuffix("_s")
    result = []
    for each in predictions:
        setup, run = each.setups[0], each.run
        uses = metric != "ttft_s" or setup.engine.name in TTFT_IS_USABLE
        if name not in run.measured_s or each.predicted_s is None or (_is_fitted(each) and uses):
            continue
        facts = facts_of(each.setups, TTFT_IS_USABLE)
        group = (setup.engine.name, setup.model.name, setup.gpu.name, "apart" if "roles" in facts else "together")
        result.append(
            Observed(group, facts, log(run.measured_s[name] / each.predicted_s[name]), each.spread.costs_sd[name])
        )
    return result


def fit_spread(runs: Sequence[Observed], metric: str) -> SpreadFit:
    """Return the parts of a latency, and coverage of groups that were left out. Raises CalibrationError for too few
    groups."""
    groups = sorted({run.group for run in runs})
    if len(groups) < LEAST_GROUPS:
        rule = f"at least {LEAST_GROUPS} groups of servers with {metric} are needed, got {len(groups)}"
        raise CalibrationError(f"{rule}; add runs of others")
    held = np.zeros(len(runs))
    for group in groups:
        without = parts([run for run in runs if run.group != group], metric)
        held[[run.group == group for run in runs]] = [
            is_held(run, metric, without) for run in runs if run.group == group
        ]
    weight = _weights(runs)
    return SpreadFit(
        n_runs=len(runs),
        n_groups=len(groups),
        sd=parts(runs, metric),
        held_frac=rounded(float(held.mean()), DIGITS),
        held_of_groups_frac=rounded(float(weight @ held / weight.sum()), DIGITS),
        held_before_frac=rounded(float(np.mean([is_held(run, metric, {}) for run in runs])), DIGITS),
    )


def parts(runs: Sequence[Observed], metric: str) -> dict[str, float]:
    """Return the standard deviations by fact that make the log ratios of the runs likeliest, each group counting once.

    A fact that no group has alone, or beside `server`, could be nothing because others explain its groups. So it has
    one more group, alone and as far off as all its own are beyond what is known.

    Each step multiplies a variance by the root of what its runs have over what they should have: a
    minorize-maximize step, which never lowers the likelihood (Zhou et al., J. Comput. Graph. Stat. 28, 2019).
    """
    facts, within = list(REASONS), WITHIN_SD[metric] ** 2
    design = np.array([[fact in run.facts for fact in facts] for run in runs], np.float64)
    known, weight = np.array([run.costs_sd**2 for run in runs]) + within, _weights(runs)
    square = np.array([run.log_ratio**2 for run in runs])
    alone = np.array([any(run.facts <= {fact, "server"} and fact in run.facts for run in runs) for fact in facts])
    n_of = np.where(alone, 0.0, weight @ design)
    excess = np.divide((weight * (square - known)) @ design, n_of, out=np.zeros(len(facts)), where=n_of > 0)
    design, known = (
        np.vstack([design, np.diag(1.0 * (n_of > 0))]),
        np.pad(known, (0, len(facts)), constant_values=within),
    )
    square = np.concatenate([square, within + np.maximum(excess, 0.0)])
    weight = np.pad(weight, (0, len(facts)), constant_values=1.0)
    variances = np.full(len(facts), START_SD**2)
    for _ in range(ROUNDS):
        total = known + design @ variances
        have, should = (weight * square / total**2) @ design, (weight / total) @ design
        variances = variances * np.sqrt(np.divide(have, should, out=np.zeros(len(facts)), where=should > 0))
    sds = {fact: rounded(sqrt(float(each)), DIGITS) for fact, each in zip(facts, variances, strict=True)}
    return {fact: sd if sd >= NEGLIGIBLE_SD else 0.0 for fact, sd in sds.items()}


def is_held(run: Observed, metric: str, sds: Mapping[str, float]) -> bool:
    """Tell whether the prediction interval of a run holds its measured mean."""
    of_draws = float(np.std(normal_scores(REPLAYS), ddof=1))
    between = sqrt(sum(sds.get(fact, 0.0) ** 2 for fact in REASONS if fact in run.facts))
    spread = hypot(run.costs_sd, of_draws * hypot(WITHIN_SD[metric], between))
    return abs(run.log_ratio) <= quantile((1 + CONFIDENCE) / 2, REPLAYS - 1) * spread


def _weights(runs: Sequence[Observed]) -> Floats:
    """Return the weight of each run, `(n_runs,)`, so that all groups weigh the same."""
    n_of = Counter(run.group for run in runs)
    return np.array([1 / n_of[run.group] for run in runs])
