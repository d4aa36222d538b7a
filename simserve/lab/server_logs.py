"""Logs of servers with their settings in a `runs.json`, replayed stage by stage with prediction intervals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simserve import catalog
from simserve.errors import CalibrationError, ScenarioError
from simserve.input_files import read_json
from simserve.lab.log_errors import ReplayedLog, replay_log
from simserve.scenario import Scenario
from simserve.simulation import simulate
from simserve.study.cost_draws import Draw, draws_for
from simserve.study.processes import forked
from simserve.study.uncertainty import prediction_interval
from simserve.tables.columns import Flags
from simserve.workload.load import Load
from simserve.workload.readers.logs import read_log
from simserve.workload.readers.logs.base import Log

RUNS = "runs.json"

METRICS = {"tpot": "tpot_s", "ttft": "ttft_s", "e2e": "e2e_s"}

WORKLOAD = {
    "client": {"kind": "closed_loop", "concurrency": 1},
    "lengths": {"kind": "fixed", "prompt_tokens": 1, "output_tokens": 1},
    "n_requests": 1,
}
"""Place of the workload, which is the log's."""


@dataclass(frozen=True)
class ServerLog:
    """A log, the server that wrote it, and when its rate changed."""

    name: str
    path: Path
    scenario: Scenario
    stages: tuple[tuple[float, float], ...]
    """Start and end of each stage in seconds; one stage where the rate is not known."""


@dataclass(frozen=True)
class PredictedSpread:
    """How far mean latencies may be off, by METRICS."""

    intervals_s: Mapping[str, tuple[float, float]]
    """90% prediction intervals."""
    costs_sd: Mapping[str, float]
    """Standard deviations of their logarithms over draws of costs and loads, without errors of servers."""


@dataclass(frozen=True)
class LogStage:
    """Mean latencies of the requests of one stage, in seconds by METRICS."""

    label: str
    measured_s: Mapping[str, float]
    predicted_s: Mapping[str, float]
    spread: PredictedSpread


def read_server_logs(folder: Path) -> tuple[list[ServerLog], list[str]]:
    """Return the logs that runs.json describes, and the names of those that are not there. Raises CalibrationError."""
    path = folder / RUNS
    if not path.is_file():
        return [], []
    try:
        runs = read_json(path)
    except (OSError, ValueError) as error:
        raise CalibrationError(f"{path}: must be JSON with the settings of each log ({error}); correct it") from None
    if not isinstance(runs, dict) or not all(isinstance(run, dict) for run in runs.values()):
        raise CalibrationError(f"{path}: must be an object with the settings of each log by its name; correct it")
    logs, missing = [], []
    for name, run in runs.items():
        file = next((each for each in sorted(folder.glob("*.csv.gz")) if each.name.endswith(f"{name}.csv.gz")), None)
        if file is None:
            missing.append(f"{folder.name}/{name}.csv.gz is not there")
        else:
            logs.append(_log(path, name, file, run))
    return logs, missing


def _log(path: Path, name: str, file: Path, run: Mapping[str, Any]) -> ServerLog:
    """Return a log with its server. Raises CalibrationError for settings that are missing or wrong."""
    try:
        return ServerLog(name, file, _scenario(path.parent, name, run), tuple(_stages(run)))
    except ScenarioError as error:
        reasons = "; ".join(str(problem) for problem in error.problems)
        raise CalibrationError(f"{path}: {name}: {reasons}") from None
    except KeyError as error:
        rule = f"{name} must give model, gpu, vllm, GPUs, limits, and the duration of each stage"
        raise CalibrationError(f"{path}: {rule}, got no {error.args[0]}; complete the entry") from None


def _scenario(folder: Path, name: str, run: Mapping[str, Any]) -> Scenario:
    """Return the server of a log; settings that are left out are the engine's."""
    pool: dict[str, Any] = {
        "parallel": {"tensor": run.get("tensor_parallelism") or run["tensor_parallel_size"]},
        "scheduler": {
            "kind": "chunked",
            "max_num_seqs": run["max_num_seqs"],
            "max_num_batched_tokens": run["max_num_batched_tokens"],
        },
    }
    names = {"kv_blocks_total_gpu": "num_gpu_blocks", "block_size": "block_size", "max_model_len": "max_model_len"}
    pool |= {ours: run[theirs] for theirs, ours in names.items() if run.get(theirs) is not None}
    return Scenario.from_dict(
        {
            "schema": "simserve/1",
            "name": name,
            "model": _model(folder, run["model"]),
            "gpu": run["gpu"].split(",")[0],
            "engine": {"name": "vllm", "version": run["vllm"]},
            "cluster": {"pools": [pool]},
            "workload": WORKLOAD,
        }
    )


def _model(folder: Path, name: str) -> str:
    """Return the model of the catalog, or config.json of the folder, with a name that begins the checkpoint's."""
    short = name.rsplit("/", 1)[-1].lower()
    files = {path.stem: str(path.resolve()) for path in folder.glob("*.json") if path.name != RUNS}
    known = {each: each for each in catalog.names("models")} | files
    fitting = [each for each in known if short.startswith(each)]
    return known[max(fitting, key=len)] if fitting else name


def _stages(run: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    start_s = 0.0
    for stage in run.get("stages", ()):
        yield start_s, start_s + stage["duration"]
        start_s += stage["duration"]
    if not start_s:
        yield 0.0, float("inf")


def predict_log(log: ServerLog) -> list[LogStage]:
    """Replay a log as it is and with perturbed costs, and return its stages that have requests to compare."""
    read = read_log(log.path)
    replayed = replay_log(read, log.scenario)
    draws = draws_for(log.scenario)
    places = [rows for stage in log.stages if (rows := _rows(replayed, *stage)).any()]
    metrics = {name: column for name, column in METRICS.items() if column in replayed.metrics}

    def perturbed(place: int) -> list[dict[str, float]]:
        results = simulate(log.scenario, load=Load(read.trace, read.concurrency), distortion=draws[place][0])
        again = ReplayedLog(read, log.scenario, results)
        return [{name: _mean(again, of, rows) for name, of in metrics.items()} for rows in places]

    with forked(perturbed, len(draws)) as answers:
        others = [means for _, means in sorted(answers)]
    stages = []
    for place, rows in enumerate(places):
        predicted = {name: _mean(replayed, of, rows) for name, of in metrics.items()}
        spread = spread_over(predicted, [each[place] for each in others], draws)
        stages.append(LogStage(_label(read, rows), _measured(replayed, metrics, rows), predicted, spread))
    return stages


def spread_over(
    predicted_s: Mapping[str, float], others: Sequence[Mapping[str, float]], draws: Sequence[Draw]
) -> PredictedSpread:
    """Return how far means may be off, from those with the costs of each draw."""
    intervals, costs_sd = {}, {}
    for name, value in predicted_s.items():
        values = [each[name] for each in others]
        residual = [factors[METRICS[name]] for _, factors in draws]
        ends = prediction_interval(value, [mean * off for mean, off in zip(values, residual, strict=True)])
        if ends is not None:
            intervals[name] = (ends[0], ends[1])
            costs_sd[name] = float(np.log(values).std(ddof=1))
    return PredictedSpread(intervals, costs_sd)


def _rows(replayed: ReplayedLog, start_s: float, end_s: float) -> Flags:
    sent_s = replayed.log.trace.arrival_s
    rows: Flags = replayed.compared("ttft_s") & (sent_s >= start_s) & (sent_s < end_s)
    return rows


def _mean(replayed: ReplayedLog, column: str, rows: Flags) -> float:
    return float(np.nanmean(replayed.predicted[column][rows]))


def _measured(replayed: ReplayedLog, metrics: Mapping[str, str], rows: Flags) -> dict[str, float]:
    return {name: float(np.nanmean(replayed.log.measured[column][rows])) for name, column in metrics.items()}


def _label(log: Log, rows: Flags) -> str:
    sent_s = log.trace.arrival_s[rows]
    return f"{np.count_nonzero(rows):,} requests from {sent_s[0]:,.0f} s on"
