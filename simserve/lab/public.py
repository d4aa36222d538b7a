"""Public data sets: the runs of a folder, each predicted with a 90% prediction interval of its means."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from simserve.cost.calibration import calibration_path, read_calibration
from simserve.errors import CalibrationError, CatalogError, ScenarioError, TraceError
from simserve.lab.public_knowledge import LOGS, Knowledge, knowledge_of
from simserve.lab.server_logs import (
    LogStage,
    PredictedSpread,
    ServerLog,
    predict_log,
    read_server_logs,
    spread_over,
)
from simserve.lab.serving import CAMPAIGNS, ServingRow, read_rows, scenario_of
from simserve.lab.settings import (
    NOT_WARMED_UP,
    Setting,
    is_export,
    is_table_of_settings,
    read_settings,
    scenario_of_setting,
)
from simserve.scenario import PoolSetup, Scenario
from simserve.simulation import simulate
from simserve.study.cost_draws import draws_for
from simserve.study.processes import forked

METRICS = ("tpot", "ttft", "e2e")

FILES = ("serving/h100_serving.csv", "serving/hopper_serving_2.csv", "serving/inferencex.csv", "logs/runs.json")
"""Files of a whole folder; `serving` may hold more tables of the same columns."""

OF_INFERENCEMAX = frozenset({1024, 8192})
"""Lengths of InferenceMAX; a set of serving runs with no others is of its client, every other of aiconfigurator's."""

MOST_IN_FLIGHT = 256
"""Requests in flight of the largest setting that is replayed; larger ones take minutes each."""

OF_DISAGGREGATED = 3
"""Requests per client of disaggregated settings, by default: ten, as measured, take minutes."""

LONG_ANSWER = 1024
"""Tokens of answers beyond which replays of ranks that wait for each other take minutes."""

Means = Mapping[str, float]
Make = Callable[[], Scenario]
Progress = Callable[[str], None]


@dataclass(frozen=True, order=True)
class DataSet:
    """Runs of one file that share engine, GPU and model."""

    file: str
    engine: str
    gpu: str
    model: str
    """Name and dtype, and whether prefill and decode are disaggregated."""

    @property
    def knowledge(self) -> Knowledge:
        """What was fitted to it, and peers' errors."""
        return knowledge_of(self.file, self.engine, self.gpu, self.model)


@dataclass(frozen=True)
class PublicRun:
    """One run of a server, as measured and as predicted, in seconds by METRICS."""

    data_set: DataSet
    version: str
    """The engine's; empty where the source does not tell."""
    label: str
    measured_s: Means
    predicted_s: Means | None
    """None where the simulator refuses it."""
    spread: PredictedSpread = field(default_factory=lambda: PredictedSpread({}, {}))
    setups: tuple[PoolSetup, ...] = ()
    """Pools of its server."""
    reason: str = ""
    """Why it is refused."""


@dataclass(frozen=True)
class Case:
    """Runs that are predicted together: one, or the stages of a log."""

    data_set: DataSet
    label: str
    predict: Callable[[], Sequence[PublicRun]]


def read_public(
    folder: Path, requests_per_client: int | None = None, *, left_out: bool = False
) -> tuple[list[Case], list[str]]:
    """Return the runs of a folder, and what was skipped. Raises CalibrationError for a folder without runs, or with a
    table that cannot be read.

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
    logs, missing = read_server_logs(folder / LOGS)
    cases += [_of_log(log) for log in logs]
    if not cases:
        rule = f"must hold public runs as {', '.join(FILES)} with its logs, got none of them"
        raise CalibrationError(f"{folder}: {rule}; docs/league.md says where they come from")
    return sorted(cases, key=lambda case: case.data_set), skipped + missing


def _replayable(path: Path, *, left_out: bool) -> tuple[list[Setting], dict[str, int]]:
    """Return the settings of a table that do not take minutes, and count the others by reason."""
    settings, reasons = read_settings(path)
    small = [each for each in settings if each.concurrency <= MOST_IN_FLIGHT]
    quick = [each for each in small if not left_out or _is_quick(each)]
    slow = "long answers of ranks that wait for each other"
    large = f"more than {MOST_IN_FLIGHT} requests in flight"
    return quick, {**reasons, large: len(settings) - len(small), slow: len(small) - len(quick)}


def spread_out(cases: Sequence[Case], most: int | None) -> Sequence[Case]:
    """Return at most that many cases of each set, evenly spaced in the order of the file; all for None."""
    if most is None:
        return cases
    by_set: dict[DataSet, list[Case]] = {}
    for case in cases:
        by_set.setdefault(case.data_set, []).append(case)
    places = {name: np.unique(np.linspace(0, len(each) - 1, most).round().astype(int)) for name, each in by_set.items()}
    return [each[place] for name, each in by_set.items() for place in places[name]]


def predict_public(cases: Sequence[Case], progress: Progress | None = None) -> list[PublicRun]:
    """Predict all runs in order; `progress` gets the name of each case."""
    runs: list[PublicRun] = []
    for i, case in enumerate(cases, 1):
        if progress is not None:
            progress(f"{i} of {len(cases)}: {case.label}")
        runs += case.predict()
    return runs


def _of_rows(
    file: str, rows: Sequence[ServingRow], requests_per_client: int | None, *, left_out: bool
) -> Iterator[Case]:
    sets = [DataSet(file, row.engine, row.gpu, f"{row.model} {row.weight_dtype}") for row in rows]
    lengths: dict[DataSet, set[int]] = {}
    for data_set, row in zip(sets, rows, strict=True):
        lengths.setdefault(data_set, set()).update((row.isl, row.osl))
    for data_set, row in zip(sets, rows, strict=True):
        campaign = CAMPAIGNS["inferencemax" if lengths[data_set] <= OF_INFERENCEMAX else "aiconfigurator"]
        n_requests = requests_per_client or campaign.requests_per_client
        campaign = replace(campaign, requests_per_client=n_requests)
        make, cold_s = partial(scenario_of, row, campaign), campaign.cold_share_s(row.engine, row.model)
        measured_s = {"tpot": row.tpot_s, "ttft": row.ttft_s}
        label = f"{row.label} on {row.gpu}"
        yield _case(data_set, row.engine_version, label, measured_s, make, cold_s, left_out=left_out)


def _of_setting(file: str, setting: Setting, requests_per_client: int | None, *, left_out: bool) -> Case:
    roles = " disaggregated" if len(setting.sides) > 1 else ""
    data_set = DataSet(file, setting.engine, setting.gpu, f"{setting.model} {setting.weight_dtype}{roles}")
    measured_s = {name: setting.measured_s[name] for name in METRICS}
    campaign = CAMPAIGNS["inferencemax"]
    n_requests = requests_per_client or (OF_DISAGGREGATED if roles else campaign.requests_per_client)
    make = partial(scenario_of_setting, setting, n_requests)
    is_cold = setting.model in NOT_WARMED_UP  # and spread over ten requests, however many are replayed
    cold_s = campaign.cold_share_s(setting.engine, setting.model) if is_cold else 0.0
    return _case(data_set, setting.version, setting.label, measured_s, make, cold_s, left_out=left_out)


def _is_quick(setting: Setting) -> bool:
    return setting.osl <= LONG_ANSWER or not any("data" in side.parallel for side in setting.sides)


def _case(
    data_set: DataSet, version: str, label: str, measured_s: Means, make: Make, cold_s: float, *, left_out: bool
) -> Case:
    def run() -> list[PublicRun]:
        try:
            scenario = _before_fit(make()) if left_out else make()
        except (ScenarioError, CatalogError) as error:
            reason = "; ".join(map(str, getattr(error, "problems", (error,))))
            return [PublicRun(data_set, version, label, measured_s, None, reason=reason)]
        return [PublicRun(data_set, version, label, measured_s, *_predicted(scenario, cold_s), scenario.setups)]

    return Case(data_set, label, run)


def _before_fit(scenario: Scenario) -> Scenario:
    """Return the scenario with a card that was fitted to serving runs as it was before: scaled by the data sheet."""
    data = scenario.to_dict()
    for pool, setup in zip(data["cluster"]["pools"], scenario.setups, strict=True):
        if setup.calibration is not None and setup.calibration.runs is not None:
            name = setup.calibration.runs.kernels_of
            pool["calibration"] = {"file": name, "sha256": read_calibration(calibration_path(name)).sha256}
    return Scenario.from_dict(data)


def _predicted(scenario: Scenario, cold_s: float) -> tuple[Means, PredictedSpread]:
    """Return mean latencies of a run and how far they may be off; a cold start adds cold_s to TTFT and E2E."""
    draws = draws_for(scenario)
    added_s = {"tpot": 0.0, "ttft": cold_s, "e2e": cold_s}

    def means(place: int) -> Means:
        """Return the means with the costs and a load of a draw, or of the run itself at the last place."""
        seed, distortion = (0, None) if place == len(draws) else (place + 1, draws[place][0])
        again = scenario.model_copy(update={"seed": scenario.seed + seed})
        requests = simulate(again, distortion=distortion).columns["requests"]
        return {name: float(np.nanmean(requests[f"{name}_s"])) + added_s[name] for name in METRICS}

    with forked(means, len(draws) + 1) as answers:
        *others, predicted = (each for _, each in sorted(answers))
    return predicted, spread_over(predicted, others, draws)


def _of_log(log: ServerLog) -> Case:
    setup = log.scenario.setups[0]
    data_set = DataSet(LOGS, setup.engine.name, setup.gpu.name, f"{setup.model.name} {setup.weight_dtype}")

    def run() -> list[PublicRun]:
        try:
            return [_of_stage(data_set, log, stage) for stage in predict_log(log)]
        except TraceError as error:
            return [PublicRun(data_set, setup.engine.version, log.name, {}, None, reason=str(error))]

    return Case(data_set, log.name, run)


def _of_stage(data_set: DataSet, log: ServerLog, stage: LogStage) -> PublicRun:
    setups, label = log.scenario.setups, f"{log.name}, {stage.label}"
    version = setups[0].engine.version
    return PublicRun(data_set, version, label, stage.measured_s, stage.predicted_s, stage.spread, setups)
