"""Public runs: those of a folder, each predicted with a 90% prediction interval of its means."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from simserve.cost.calibration import calibration_path, read_calibration
from simserve.errors import CalibrationError, CatalogError, ScenarioError, TraceError
from simserve.lab.campaigns import CAMPAIGNS, ServingRow, run_of
from simserve.lab.fit import Progress
from simserve.lab.inferencex import CAMPAIGN, NOT_WARMED_UP, Setting, run_of_setting
from simserve.lab.kernels.package import package_folder
from simserve.lab.league import DataSet, data_set_of
from simserve.lab.run_tables import read_rows, row_of
from simserve.lab.runs import Means, MeasuredRun, Prediction, refused
from simserve.lab.server_logs import LOGS, ServerLog, predict_log, read_server_logs, spread_over
from simserve.lab.settings_table import is_export, is_table_of_settings, read_settings
from simserve.scenario import Scenario
from simserve.simulation import simulate
from simserve.study.cost_draws import draws_for
from simserve.study.processes import forked

FILES = ("serving/h100_serving.csv", "serving/hopper_serving_2.csv", "serving/inferencex.csv", "logs/runs.json")
"""Files of a whole folder; `serving` may hold more tables of the same columns."""

OF_INFERENCEMAX = frozenset({1024, 8192})
"""Lengths of InferenceMAX; a set of serving runs with no others is of its client, every other of aiconfigurator's."""

LONG_ANSWER, MOST_WITH_LONG_ANSWERS = 1024, 1024
"""Tokens of answers, and requests in flight beyond which so long ones of ranks that wait for each other take more than
25 s of CPU time for a replay; their settings are left out."""

MANY_IN_FLIGHT, OF_LARGE = 256, 3
"""Requests in flight beyond which a setting is large, as one of such ranks with long answers is; its requests per
client, by default, in place of ten, as measured."""

FILE = "silicon_sample.csv"
"""Measured samples of `aiconfigurator-core` (NVIDIA, Apache-2.0), read as serving runs of Blackwell servers: aggregated
ones without ranks or pipelines, of the cards on which no server was fitted."""

CARDS = ("b200_sxm", "b300_sxm", "gb200", "gb300")
MOST_SAMPLED = 256
NUMBERED = r"\d+\.\d+\.\d+.*"
"""Versions; others are nightly builds, which run as the engine's default."""
TIMES = {"ttft_ms_mean": ("silicon_ttft_ms", "median"), "tpot_ms_mean": ("silicon_tpot_ms", "median")}
SERVER = ["engine", "engine_version", "gpu", "model", "weight_dtype", "tp", "ep", "isl", "osl", "concurrency"]


@dataclass(frozen=True)
class Case:
    """Runs that are predicted together: one, or the stages of a log."""

    data_set: DataSet
    label: str
    predict: Callable[[], Sequence[Prediction]]


def read_public(
    folder: Path, requests_per_client: int | None = None, *, left_out: bool = False, with_package: bool = False
) -> tuple[list[Case], list[str]]:
    """Return the runs of a folder, and what was skipped. Raises CalibrationError for a folder without runs, or with a
    table that cannot be read.

    with_package: also servers of the package with timings of kernels, if it is installed.

    left_out: predict runs of a card that was fitted to serving runs with the kernels as they were before that fit, and
    skip what takes minutes.
    """
    cases: list[Case] = []
    skipped = [f"{name} is not there" for name in FILES if not (folder / name).is_file()]
    for path in sorted((folder / "serving").glob("*.csv")):
        if is_export(path):
            skipped.append(f"serving/{path.name} is an export of InferenceX, which does not name versions of engines")
        elif is_table_of_settings(path):
            quick, reasons = _replayable(path, left_out=left_out)
            cases += [_of_setting(path.name, each, requests_per_client, left_out=left_out) for each in quick]
            skipped += [f"{n} of serving/{path.name}: {reason}" for reason, n in reasons.items() if n]
        else:
            cases += _of_rows(path.name, read_rows(path), requests_per_client, left_out=left_out)
    try:
        cases += _of_rows(FILE, silicon_rows() if with_package else [], requests_per_client, left_out=left_out)
    except CalibrationError as error:
        skipped.append(f"servers of Blackwell: {error}")
    logs, missing = read_server_logs(folder / LOGS)
    cases += [_of_log(log) for log in logs]
    if not cases:
        rule = f"must hold public runs as {', '.join(FILES)} with its logs, got none of them"
        raise CalibrationError(f"{folder}: {rule}; docs/league.md says where they come from")
    return sorted(cases, key=lambda case: case.data_set), skipped + missing


def _replayable(path: Path, *, left_out: bool) -> tuple[list[Setting], dict[str, int]]:
    """Return the settings of a table that do not take minutes, and count the others by reason."""
    settings, reasons = read_settings(path)
    most = 0 if left_out else MOST_WITH_LONG_ANSWERS
    quick = [each for each in settings if each.concurrency <= most or not _has_long_ranks(each)]
    slow = "long answers of ranks that wait for each other" + (f", to more than {most} clients" if most else "")
    if left_out:
        quick, slow = [each for each in quick if each.concurrency <= MANY_IN_FLIGHT], f"{slow}, or many in flight"
    return quick, {**reasons, slow: len(settings) - len(quick)}


def spread_out(cases: Sequence[Case], most: int | None) -> Sequence[Case]:
    """Return at most that many cases of each set, evenly spaced in the order of the file; all for None."""
    if most is None:
        return cases
    by_set: dict[DataSet, list[Case]] = {}
    for case in cases:
        by_set.setdefault(case.data_set, []).append(case)
    places = {name: np.unique(np.linspace(0, len(each) - 1, most).round().astype(int)) for name, each in by_set.items()}
    return [each[place] for name, each in by_set.items() for place in places[name]]


def predict_public(cases: Sequence[Case], progress: Progress | None = None) -> list[Prediction]:
    """Predict all runs in order; `progress` gets the name of each case."""
    runs: list[Prediction] = []
    for i, case in enumerate(cases, 1):
        if progress is not None:
            progress(f"{i} of {len(cases)}: {case.label}")
        runs += case.predict()
    return runs


def _of_rows(file: str, rows: Sequence[ServingRow], per_client: int | None, *, left_out: bool) -> Iterator[Case]:
    sets = [(row.engine, row.gpu, row.model, row.weight_dtype) for row in rows]
    lengths: dict[tuple[str, ...], set[int]] = {}
    for data_set, row in zip(sets, rows, strict=True):
        lengths.setdefault(data_set, set()).update((row.isl, row.osl))
    for data_set, row in zip(sets, rows, strict=True):
        of_inferencemax = lengths[data_set] <= OF_INFERENCEMAX
        campaign = CAMPAIGNS["inferencemax" if of_inferencemax else "aiconfigurator"]
        n_requests = per_client or campaign.requests_per_client
        own = run_of(row, replace(campaign, requests_per_client=n_requests), file)
        yield _case(replace(own, label=f"{own.label} on {own.gpu}"), left_out=left_out)


def _of_setting(file: str, setting: Setting, requests_per_client: int | None, *, left_out: bool) -> Case:
    is_large = _has_long_ranks(setting) or setting.concurrency > MANY_IN_FLIGHT
    by_default = OF_LARGE if is_large else CAMPAIGN.requests_per_client
    run = run_of_setting(setting, requests_per_client or by_default, file)
    is_cold = setting.model in NOT_WARMED_UP  # and spread over ten requests, however many are replayed
    cold_s = CAMPAIGN.cold_share_s(setting.engine, setting.model) if is_cold else 0.0
    return _case(replace(run, cold_s=cold_s), left_out=left_out)


def _has_long_ranks(setting: Setting) -> bool:
    return setting.osl > LONG_ANSWER and any("data" in side.parallel for side in setting.sides)


def _case(run: MeasuredRun, *, left_out: bool) -> Case:
    return Case(data_set_of(run), run.label, lambda: [_predicted(run, left_out=left_out)])


def _predicted(run: MeasuredRun, *, left_out: bool) -> Prediction:
    """Predict a run with its prediction intervals."""
    try:
        scenario = _before_fit(run.scenario()) if left_out else run.scenario()
    except (ScenarioError, CatalogError) as error:
        return refused(run, error)
    draws = draws_for(scenario)

    def means(place: int) -> Means:
        """Return the means with the costs and a load of a draw, or of the run itself at the last place."""
        seed, distortion = (0, None) if place == len(draws) else (place + 1, draws[place][0])
        again = scenario.model_copy(update={"seed": scenario.seed + seed})
        return run.means(simulate(again, distortion=distortion))

    with forked(means, len(draws) + 1) as answers:
        *others, predicted = (each for _, each in sorted(answers))
    return Prediction(run, predicted, spread=spread_over(predicted, others, draws), setups=scenario.setups)


def _before_fit(scenario: Scenario) -> Scenario:
    """Return the scenario with a card that was fitted to its own runs as it was before: scaled by the data sheet."""
    data = scenario.to_dict()
    for pool, setup in zip(data["cluster"]["pools"], scenario.setups, strict=True):
        if setup.calibrated and setup.calibration is not None and setup.calibration.runs is not None:
            name = setup.calibration.runs.kernels_of
            pool["calibration"] = {"file": name, "sha256": read_calibration(calibration_path(name)).sha256}
    return Scenario.from_dict(data)


def _of_log(log: ServerLog) -> Case:
    def predict() -> list[Prediction]:
        try:
            return predict_log(log)
        except TraceError as error:
            return [refused(log.run, error)]

    return Case(data_set_of(log.run), log.run.label, predict)


def silicon_path() -> Path:
    """Return the file with the samples. Raises CalibrationError where the package is not installed."""
    return package_folder() / FILE


def silicon_rows() -> list[ServingRow]:
    """Return the servers, one row a setting, at the medians of its samples. Raises CalibrationError."""
    path = silicon_path()
    rows = pd.read_csv(path).query("mode == 'agg' and attention_dp_size == 1")
    rows = rows[rows.system.isin(CARDS) & (rows.pp_size.fillna(1) == 1)]
    in_flight = rows.silicon_data_source.str.extract(r"silicon_concurrency=(\d+)")[0].astype(float)
    ep = rows.moe_ep_size.fillna(1).clip(lower=1)
    together = (ep > 1) & (rows.tp_size > 8)  # these give the product of both
    rows = rows.assign(
        engine=rows.backend,
        engine_version=rows.backend_version.fillna("").where(lambda each: each.str.fullmatch(NUMBERED), ""),
        gpu=rows.system,
        model=rows.model_path,
        weight_dtype=rows[["model_path", "gemm_quant_mode", "precision"]].apply(_weight_dtype, axis=1),
        tp=rows.tp_size.where(~together, rows.tp_size / ep).astype(int),
        ep=ep.astype(int),
        concurrency=in_flight.fillna(rows.batch_size).astype(int),
    )
    rows = rows[(rows.silicon_ttft_ms > 0) & (rows.silicon_tpot_ms > 0) & (rows.concurrency <= MOST_SAMPLED)]
    table = rows.groupby(SERVER, sort=True).agg(**TIMES).reset_index().astype(str)
    values = (dict(zip(table.columns, row, strict=True)) for row in table.itertuples(index=False))
    return [row_of(path, line, each) for line, each in enumerate(values, 2)]


def _weight_dtype(row: "pd.Series[str]") -> str:
    model, matrices, precision = row
    if "gpt-oss" in model:
        return "mxfp4"
    if matrices == "int4_wo":
        return "int4"
    blocks = "fp8" if "llama" in model.lower() else "fp8_block"
    return {"fp8": blocks, "fp4": "nvfp4", "nvfp4": "nvfp4"}.get(str(precision), "bf16")
