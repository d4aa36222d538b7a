"""Validated log: a real server's log against the simulator, what the errors allow, and all of it as plain data."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from simserve.lab.log_checks import cached_share, cached_words, check_server, early_answers, is_seen
from simserve.lab.log_errors import ReplayedLog, RequestGroup, Sides, replay_log, server_of
from simserve.lab.log_pages import tell
from simserve.lab.runs import Errors
from simserve.lab.trust import REQUESTS_ENOUGH, LatencyError, Trust, trust_in
from simserve.metrics.answers.shown import Shown
from simserve.metrics.goal import FEW_FOR_P99
from simserve.report.document import Document
from simserve.report.formats import SHORT
from simserve.scenario import PoolSetup
from simserve.tables.columns import Columns, Flags, TableRows
from simserve.tables.fields import Field
from simserve.tables.files import plain
from simserve.workload.readers.logs import read_log
from simserve.workload.readers.logs.glossary import LogReading

WORST = 5
WORST_OF = ("ttft_s", "tpot_s")


def trust_in_log(replay: ReplayedLog, server: str) -> Trust:
    """Return the decision about a log replayed on the server of a scenario file."""
    errors = []
    for name in replay.metrics:
        n, error = int(np.count_nonzero(replay.compared(name))), replay.error_of_mean(name)
        ends = sorted((abs(error.low), abs(error.high)))
        low = 0.0 if error.low < 0 < error.high else ends[0]
        tail = abs(replay.distribution(name)["p99"].error_frac) if n >= FEW_FOR_P99 else None
        span: dict[str, Any] = {"low_frac": low, "high_frac": ends[1]} if error.has_interval else {}
        of: dict[str, Any] = {"error_frac": abs(error.value), "tail_frac": tail, "bias_frac": error.value}
        errors.append(LatencyError(latency=SHORT[name], n=n, **span, **of))
    log = shlex.quote(str(replay.log.place.path))
    command = f"simserve calibrate --logs {log} --scenario {shlex.quote(server)} --out calibration"
    return trust_in(errors, "requests", REQUESTS_ENOUGH, command)


def log_error_facts(replay: ReplayedLog) -> dict[str, Any]:
    """Return all results of a replay log; times in seconds, errors as shares of the measured value."""
    log, scenario = replay.log, replay.scenario
    metrics, features = replay.metrics, replay.features
    return {
        "log": {
            "path": str(log.place.path),
            "n_requests": len(log),
            "n_failed": log.n_failed,
            "n_unfinished": log.n_unfinished,
            "n_compared": int(np.count_nonzero(replay.is_answered)) - sum(_lost(replay).values()),
            "arrivals": log.arrivals,
            "concurrency": log.concurrency,
        },
        "scenario": {"name": scenario.name, "digest": scenario.digest, "seed": scenario.seed},
        "assumed": [*log.assumed, *dict.fromkeys(map(_costs, scenario.setups))],
        "warnings": list(_warnings(replay)),
        "distributions": {
            name: {
                "n": int(np.count_nonzero(replay.compared(name))),
                **{level: _sides(sides) for level, sides in replay.distribution(name).items()},
            }
            for name in metrics
        },
        "errors": {
            name: {
                "overall": _errors(overall),
                "by_load": _groups(replay.groups(name, features["tpot_s"])),
                "by_prompt_tokens": _groups(replay.groups(name, features["ttft_s"])),
            }
            for name in metrics
            if (overall := replay.errors(name)) is not None
        },
        "makespan_s": _sides(replay.makespan_s),
        "output_tokens_per_s": _sides(replay.output_tokens_per_s),
        "worst": {name: _worst(replay, name) for name in WORST_OF if name in metrics and log.is_paired},
        "requests": requests_of(replay),
    }


def _sides(sides: Sides) -> dict[str, float]:
    return {"measured": sides.measured, "predicted": sides.predicted, "error_frac": sides.error_frac}


def _errors(errors: Errors) -> dict[str, float]:
    return {name: value for name, value in asdict(errors).items() if name != "interval"}


def _groups(groups: Sequence[RequestGroup]) -> list[dict[str, float]]:
    return [{"lowest": each.lowest, "highest": each.highest, **_errors(each.errors)} for each in groups]


def requests_of(replay: ReplayedLog) -> dict[str, Any]:
    """Return columns with one row per request; null where a value is missing."""
    log, requests = replay.log, replay.results.columns["requests"]
    return {
        log.place.word: log.place.numbers,
        "arrival_s": log.trace.arrival_s if log.has_instants else None,
        "prompt_tokens": log.trace.prompt_tokens,
        "output_tokens": log.trace.output_tokens,
        **{f"measured_{name}": column for name, column in log.measured.items()},
        **{f"predicted_{name}": replay.predicted[name] for name in log.measured},
        "predicted_status": [requests["status"].categories[code] for code in requests["status"].codes],
    }


def _worst(replay: ReplayedLog, metric: str) -> list[dict[str, Any]]:
    log = replay.log
    return [
        {
            "request": f"{log.place.word} {log.place.numbers[row]}",
            "arrival_s": float(log.trace.arrival_s[row]) if log.has_instants else None,
            "prompt_tokens": int(log.trace.prompt_tokens[row]),
            "output_tokens": int(log.trace.output_tokens[row]),
            "measured": float(log.measured[metric][row]),
            "predicted": float(replay.predicted[metric][row]),
            "ratio": float(replay.signed(metric)[row] + 1),
        }
        for row in replay.worst(metric, WORST)
    ]


def _costs(setup: PoolSetup) -> str:
    """Describe the source of a pool's step costs in one line."""
    server = f"{setup.model.name} on {setup.parallel.tensor} x {setup.gpu.name} under {setup.engine.name}"
    calibration = setup.calibration
    if calibration is None:
        return f"{server}: step costs are a roofline with assumed efficiencies"
    how = "timed" if calibration.runs is None else "fitted to serving runs"
    timed = f"kernels of {calibration.gpu}, {how} under {calibration.engine} {calibration.engine_version}"
    return f"{server}: step costs are {timed}"


def _lost(replay: ReplayedLog) -> dict[str, int]:
    """Count requests that the server answered and the simulator did not, by their simulated outcome."""
    status = replay.results.columns["requests"]["status"]
    fates = ("rejected", "timed_out", "unfinished")
    return {fate: int(np.count_nonzero(replay.is_answered & status.is_(fate))) for fate in fates}


def _warnings(replay: ReplayedLog) -> Iterator[str]:
    """Yield warnings, the most important first."""
    log, requests, lost = replay.log, replay.results.columns["requests"], _lost(replay)
    named = check_server(log, replay.scenario)
    yield from [named] if named else []
    if lost["rejected"]:
        refused = replay.is_answered & requests["status"].is_("rejected")
        yield f"the server served {replay.some(refused)} that the simulator rejects ({_reasons(replay, refused)})"
    stuck = replay.is_answered & (requests["status"].is_("unfinished") | requests["status"].is_("timed_out"))
    if stuck.any():
        yield f"the server served {replay.some(stuck)} that the simulator never finishes ({_reasons(replay, stuck)})"
    is_cut = requests["output_tokens"] < log.trace.output_tokens
    if is_cut.any():
        yield f"the simulator cuts {replay.some(is_cut)} short, at max_tokens or max_model_len"
    cached = cached_share(replay, np.arange(len(replay.log)))
    yield from [cached_words(cached) or ""] if is_seen(cached) else early_answers(replay)
    if log.n_failed:
        yield f"{_requests_of(log.n_failed)} of the log failed and are not replayed"
    if log.n_unfinished:
        yield f"{_requests_of(log.n_unfinished)} of the log did not finish: replayed, but not compared"
    yield from (*replay.results.facts.notes, *replay.results.facts.warnings)
    if replay.results.summary["trust"]["kv_limit_is_a_guess"]:
        yield "the KV cache nearly filled up and its size is an estimate; set num_gpu_blocks from the server's log"
    n_answered = int(np.count_nonzero(replay.is_answered))
    if n_answered < FEW_FOR_P99:
        yield f"p99 of {n_answered} requests is unreliable; it needs {FEW_FOR_P99}"


def _requests_of(n: int) -> str:
    return "1 request" if n == 1 else f"{n} requests"


def _reasons(replay: ReplayedLog, rows: Flags) -> str:
    reason = replay.results.columns["requests"]["status_reason"]
    given = dict.fromkeys(reason.categories[code] for code in reason.codes[rows].tolist() if code >= 0)
    return "; ".join(given) or "no reason given"


NUMBERS = ("_s", "_tokens")
"""Ends of the names of columns of numbers."""


@dataclass(frozen=True, repr=False)
class ValidatedLog(Shown):
    """A log replayed request by request."""

    command: ClassVar[str] = "validate"
    decision: Trust
    """What the errors allow, with each latency's error and the command that calibrates."""
    printed: Mapping[str, Any]
    """What `--json` prints: the decision, distributions, errors, the worst requests, each request."""
    requests: Columns
    """Each request: lengths, and each latency measured and predicted, `(n_requests,)` each."""

    @classmethod
    def of(cls, log: Path, scenario: Path, columns: Mapping[str, str]) -> "ValidatedLog":
        """Replay the requests of a log on the server of a scenario. Raises SimserveError."""
        server = server_of(scenario)
        read = read_log(log, server.seed, LogReading(columns))
        check_server(read, server)
        replay = replay_log(read, server)
        decision, requests = trust_in_log(replay, str(scenario)), requests_of(replay)
        printed = plain({"decision": decision.facts(), **log_error_facts(replay)})
        return cls(decision, printed, {name: column for name, column in requests.items() if column is not None})

    @property
    def document(self) -> Document:
        """All that it tells."""
        return tell(self.printed, self.decision)

    @property
    def rows(self) -> TableRows:
        """A row a request; null where a side has no latency."""
        numbers = {name: column for name, column in self.requests.items() if name.endswith(NUMBERS)}
        return TableRows("validation.parquet", tuple(Field(name, "float") for name in numbers), numbers)
