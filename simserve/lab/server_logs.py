"""Logs of servers with their settings in a `runs.json`, replayed stage by stage with prediction intervals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simserve import catalog
from simserve.errors import CalibrationError, ScenarioError
from simserve.input_files import read_json
from simserve.lab.log_errors import ReplayedLog, replay_log
from simserve.lab.runs import METRICS, Means, MeasuredRun, PredictedSpread, Prediction
from simserve.scenario import Scenario
from simserve.simulation import simulate
from simserve.study.cost_draws import Draw, draws_for
from simserve.study.prediction import prediction_interval
from simserve.study.processes import forked
from simserve.workload.load import Load
from simserve.workload.readers.logs import read_log

RUNS = "runs.json"

LOGS = "logs"
"""Name of the logs of a folder, in place of a file's."""

WORKLOAD = {
    "client": {"kind": "closed_loop", "concurrency": 1},
    "lengths": {"kind": "fixed", "prompt_tokens": 1, "output_tokens": 1},
    "n_requests": 1,
}
"""Place of the workload, which is the log's."""


@dataclass(frozen=True)
class ServerLog:
    """A log, the server that wrote it, and when its rate changed."""

    run: MeasuredRun
    """Its server, and its name as a label; each stage is one of these with means."""
    path: Path
    scenario: Scenario
    stages: tuple[tuple[float, float], ...]
    """Start and end of each stage in seconds; one stage where the rate is not known."""


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
        scenario = _scenario(path.parent, name, run)
        setup = scenario.setups[0]
        server = MeasuredRun(
            source=LOGS,
            engine=setup.engine.name,
            version=setup.engine.version,
            gpu=setup.gpu.name,
            model=setup.model.name,
            weight_dtype=setup.weight_dtype,
            label=name,
            measured_s={},
        )
        return ServerLog(server, file, scenario, tuple(_stages(run)))
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


def predict_log(log: ServerLog) -> list[Prediction]:
    """Replay a log as it is and with perturbed costs, and return its stages that have requests to compare."""
    read = read_log(log.path)
    replayed = replay_log(read, log.scenario)
    draws = draws_for(log.scenario)
    sent_s, is_compared = read.trace.arrival_s, replayed.compared("ttft_s")
    stages = [is_compared & (sent_s >= start_s) & (sent_s < end_s) for start_s, end_s in log.stages]
    places = [rows for rows in stages if rows.any()]
    metrics = [name for name in METRICS if f"{name}_s" in replayed.metrics]

    def means(replay: ReplayedLog) -> list[Means]:
        return [{name: float(np.nanmean(replay.predicted[f"{name}_s"][rows])) for name in metrics} for rows in places]

    def perturbed(place: int) -> list[Means]:
        results = simulate(log.scenario, load=Load(read.trace, read.concurrency), distortion=draws[place][0])
        return means(ReplayedLog(read, log.scenario, results))

    with forked(perturbed, len(draws)) as answers:
        others = [each for _, each in sorted(answers)]
    predictions = []
    for place, (rows, predicted) in enumerate(zip(places, means(replayed), strict=True)):
        measured_s = {name: float(np.nanmean(read.measured[f"{name}_s"][rows])) for name in metrics}
        label = f"{log.run.label}, {np.count_nonzero(rows):,} requests from {sent_s[rows][0]:,.0f} s on"
        run = replace(log.run, label=label, measured_s=measured_s)
        spread = spread_over(predicted, [each[place] for each in others], draws)
        predictions.append(Prediction(run, predicted, spread=spread, setups=log.scenario.setups))
    return predictions


def spread_over(predicted_s: Means, others: Sequence[Means], draws: Sequence[Draw]) -> PredictedSpread:
    """Return how far means may be off, from those with the costs of each draw."""
    intervals, costs_sd = {}, {}
    for name in (name for name in METRICS if name in predicted_s):
        values = [each[name] for each in others]
        residual = [factors[f"{name}_s"] for _, factors in draws]
        ends = prediction_interval(predicted_s[name], [mean * off for mean, off in zip(values, residual, strict=True)])
        if ends is not None:
            intervals[name] = (ends[0], ends[1])
            costs_sd[name] = float(np.log(values).std(ddof=1))
    return PredictedSpread(intervals, costs_sd)
