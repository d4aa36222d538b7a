"""Public data sets: the runs of a folder, each predicted with a 90% prediction interval of its means."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from simserve.errors import CalibrationError, CatalogError, ScenarioError
from simserve.scenario import Scenario
from simserve.simulation import simulate
from simserve.study.uncertainty import predict
from simserve.study.validate.public_knowledge import LOGS, Knowledge, knowledge_of
from simserve.study.validate.server_logs import LogStage, ServerLog, predict_log, read_server_logs
from simserve.study.validate.serving import CAMPAIGNS, ServingRow, read_rows, scenario_of
from simserve.study.validate.settings import Setting, is_table_of_settings, read_settings, scenario_of_setting

METRICS = ("tpot", "ttft", "e2e")

FILES = ("serving/h100_serving.csv", "serving/hopper_serving_2.csv", "serving/inferencex.csv", "logs/runs.json")
"""Files of a whole folder; `serving` may hold more tables of the same columns."""

OF_INFERENCEMAX = frozenset({1024, 8192})
"""Lengths of InferenceMAX; a set of serving runs with no others is of its client, every other of aiconfigurator's."""

MOST_IN_FLIGHT = 256
"""Requests in flight of the largest setting that is replayed; larger ones take minutes each."""

OF_DISAGGREGATED = 3
"""Requests per client of disaggregated settings, by default: ten, as measured, take minutes."""

Means = Mapping[str, float]
Intervals = Mapping[str, tuple[float, float]]
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
    intervals_s: Intervals
    reason: str = ""
    """Why it is refused."""


@dataclass(frozen=True)
class Case:
    """Runs that are predicted together: one, or the stages of a log."""

    data_set: DataSet
    label: str
    predict: Callable[[], Sequence[PublicRun]]


def read_public(folder: Path, requests_per_client: int | None = None) -> tuple[list[Case], list[str]]:
    """Return the runs of a folder, and what was skipped. Raises CalibrationError for a folder without runs, or with a
    table that cannot be read."""
    cases: list[Case] = []
    skipped = [f"{name} is not there" for name in FILES if not (folder / name).is_file()]
    for path in sorted((folder / "serving").glob("*.csv")):
        if is_table_of_settings(path):
            settings, n_odd = read_settings(path)
            small = [each for each in settings if each.concurrency <= MOST_IN_FLIGHT]
            cases += [_of_setting(path.name, each, requests_per_client) for each in small]
            n_by_reason = {
                "workers, TP and EP do not give the GPUs": n_odd,
                f"more than {MOST_IN_FLIGHT} requests in flight": len(settings) - len(small),
            }
            skipped += [f"{n} of serving/{path.name}: {reason}" for reason, n in n_by_reason.items() if n]
        else:
            cases += _of_rows(path.name, read_rows(path), requests_per_client)
    logs, missing = read_server_logs(folder / LOGS)
    cases += [_of_log(log) for log in logs]
    if not cases:
        rule = f"must hold public runs as {', '.join(FILES)} with its logs, got none of them"
        raise CalibrationError(f"{folder}: {rule}; docs/league.md says where they come from")
    return sorted(cases, key=lambda case: case.data_set), skipped + missing


def spread_out(cases: Sequence[Case], most: int) -> list[Case]:
    """Return at most that many cases of each set, evenly spaced in the order of the file."""
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


def _of_rows(file: str, rows: Sequence[ServingRow], requests_per_client: int | None) -> Iterator[Case]:
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
        yield _case(data_set, row.engine_version, f"{row.label} on {row.gpu}", measured_s, make, cold_s)


def _of_setting(file: str, setting: Setting, requests_per_client: int | None) -> Case:
    roles = " disaggregated" if len(setting.sides) > 1 else ""
    data_set = DataSet(file, setting.engine, setting.gpu, f"{setting.model} {setting.weight_dtype}{roles}")
    measured_s = {name: setting.measured_s[name] for name in METRICS}
    usual = OF_DISAGGREGATED if roles else CAMPAIGNS["inferencemax"].requests_per_client
    n_requests = requests_per_client or usual
    make = partial(scenario_of_setting, setting, n_requests)
    return _case(data_set, setting.version, setting.label, measured_s, make)


def _case(
    data_set: DataSet,
    version: str,
    label: str,
    measured_s: Means,
    make: Callable[[], Scenario],
    cold_s: float = 0.0,
) -> Case:
    def run() -> list[PublicRun]:
        try:
            scenario = make()
        except (ScenarioError, CatalogError) as error:
            problems = getattr(error, "problems", (error,))
            return [PublicRun(data_set, version, label, measured_s, None, {}, "; ".join(map(str, problems)))]
        return [PublicRun(data_set, version, label, measured_s, *_predicted(scenario, cold_s))]

    return Case(data_set, label, run)


def _predicted(scenario: Scenario, cold_s: float) -> tuple[Means, Intervals]:
    """Return mean latencies of a run with their prediction intervals; a cold start adds cold_s to TTFT and E2E."""
    results = simulate(scenario)
    predict(scenario, results)
    requests, latencies = results.columns["requests"], results.summary["prediction"]["latencies"]
    intervals = {name: latencies[f"{name}_s"]["mean"] for name in METRICS if f"{name}_s" in latencies}
    added_s = {"tpot": 0.0, "ttft": cold_s, "e2e": cold_s}
    means = {name: float(np.nanmean(requests[f"{name}_s"])) + added_s[name] for name in METRICS}
    return means, {
        name: (ends[0] + added_s[name], ends[1] + added_s[name]) for name, ends in intervals.items() if ends is not None
    }


def _of_log(log: ServerLog) -> Case:
    setup = log.scenario.setups[0]
    data_set = DataSet(LOGS, setup.engine.name, setup.gpu.name, f"{setup.model.name} {setup.weight_dtype}")

    def run() -> list[PublicRun]:
        return [_of_stage(data_set, log, stage) for stage in predict_log(log)]

    return Case(data_set, log.name, run)


def _of_stage(data_set: DataSet, log: ServerLog, stage: LogStage) -> PublicRun:
    version, label = log.scenario.setups[0].engine.version, f"{log.name}, {stage.label}"
    return PublicRun(data_set, version, label, stage.measured_s, stage.predicted_s, stage.intervals_s)
