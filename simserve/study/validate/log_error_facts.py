"""A replayed log as plain data, for --json, the page and the terminal alike."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from simserve.metrics.goal import FEW_FOR_P99
from simserve.scenario import PoolSetup
from simserve.study.validate.log_errors import ReplayedLog, RequestGroup, Sides
from simserve.study.validate.validate import Errors
from simserve.tables.columns import Flags

WORST = 5
WORST_OF = ("ttft_s", "tpot_s")


def log_error_facts(result: ReplayedLog) -> dict[str, Any]:
    """Return all results of a replayed log; times in seconds, errors as shares of the measured value."""
    log, scenario = result.log, result.scenario
    metrics = result.metrics
    return {
        "log": {
            "path": str(log.place.path),
            "n_requests": len(log),
            "n_failed": log.n_failed,
            "n_unfinished": log.n_unfinished,
            "n_compared": int(np.count_nonzero(result.is_answered)) - sum(_lost(result).values()),
            "arrivals": log.arrivals,
            "concurrency": log.concurrency,
        },
        "scenario": {"name": scenario.name, "digest": scenario.digest, "seed": scenario.seed},
        "assumed": [*log.assumed, *dict.fromkeys(map(_costs, scenario.setups))],
        "warnings": list(_warnings(result)),
        "distributions": {
            name: {
                "n": int(np.count_nonzero(result.compared(name))),
                **{level: _sides(sides) for level, sides in result.distribution(name).items()},
            }
            for name in metrics
        },
        "errors": {
            name: {
                "overall": _errors(overall),
                "by_load": _groups(result.by_load(name)),
                "by_prompt_tokens": _groups(result.by_prompt(name)),
            }
            for name in metrics
            if (overall := result.errors(name)) is not None
        },
        "makespan_s": _sides(result.makespan_s),
        "output_tokens_per_s": _sides(result.output_tokens_per_s),
        "worst": {name: _worst(result, name) for name in WORST_OF if name in metrics and log.is_paired},
        "requests": _requests(result),
    }


def _sides(sides: Sides) -> dict[str, float]:
    return {"measured": sides.measured, "predicted": sides.predicted, "error_frac": sides.error_frac}


def _errors(errors: Errors) -> dict[str, float]:
    return {name: value for name, value in asdict(errors).items() if name != "interval"}


def _groups(groups: Sequence[RequestGroup]) -> list[dict[str, float]]:
    return [{"lowest": each.lowest, "highest": each.highest, **_errors(each.errors)} for each in groups]


def _requests(result: ReplayedLog) -> dict[str, Any]:
    """Return columns with one row per request; null where a value is missing."""
    log, requests = result.log, result.results.columns["requests"]
    return {
        log.place.word: log.place.numbers,
        "arrival_s": log.trace.arrival_s if log.has_instants else None,
        "prompt_tokens": log.trace.prompt_tokens,
        "output_tokens": log.trace.output_tokens,
        **{f"measured_{name}": column for name, column in log.measured.items()},
        **{f"predicted_{name}": result.predicted[name] for name in log.measured},
        "predicted_status": [requests["status"].categories[code] for code in requests["status"].codes],
    }


def _worst(result: ReplayedLog, metric: str) -> list[dict[str, Any]]:
    log = result.log
    return [
        {
            "request": f"{log.place.word} {log.place.numbers[row]}",
            "arrival_s": float(log.trace.arrival_s[row]) if log.has_instants else None,
            "prompt_tokens": int(log.trace.prompt_tokens[row]),
            "output_tokens": int(log.trace.output_tokens[row]),
            "measured": float(log.measured[metric][row]),
            "predicted": float(result.predicted[metric][row]),
            "ratio": float(result.signed(metric)[row] + 1),
        }
        for row in result.worst(metric, WORST)
    ]


def _costs(setup: PoolSetup) -> str:
    """Describe the source of a pool's step costs in one line."""
    server = f"{setup.model.name} on {setup.tensor} x {setup.gpu.name} under {setup.engine.name}"
    calibration = setup.calibration
    if calibration is None:
        return f"{server}: step costs are a roofline with assumed efficiencies"
    timed = f"kernels of {calibration.gpu}, timed under {calibration.engine} {calibration.engine_version}"
    return f"{server}: step costs are {timed}"


def _lost(result: ReplayedLog) -> dict[str, int]:
    """Count requests that the server answered and the simulator did not, by their simulated outcome."""
    status = result.results.columns["requests"]["status"]
    fates = ("rejected", "timed_out", "unfinished")
    return {fate: int(np.count_nonzero(result.is_answered & status.is_(fate))) for fate in fates}


def _warnings(result: ReplayedLog) -> Iterator[str]:
    """Yield warnings, the most important first."""
    log, requests, lost = result.log, result.results.columns["requests"], _lost(result)
    if lost["rejected"]:
        refused = result.is_answered & requests["status"].is_("rejected")
        yield f"the server served {_some(result, refused)} that the simulator rejects ({_reasons(result, refused)})"
    stuck = result.is_answered & (requests["status"].is_("unfinished") | requests["status"].is_("timed_out"))
    if stuck.any():
        yield f"the server served {_some(result, stuck)} that never finish in the simulator ({_reasons(result, stuck)})"
    is_cut = requests["output_tokens"] < log.trace.output_tokens
    if is_cut.any():
        yield f"the simulator cuts {_some(result, is_cut)} short, at max_tokens or max_model_len"
    if log.n_failed:
        yield f"{_requests_of(log.n_failed)} of the log failed and are not replayed"
    if log.n_unfinished:
        yield f"{_requests_of(log.n_unfinished)} of the log did not finish: replayed, but not compared"
    yield from (*result.results.facts.notes, *result.results.facts.warnings)
    if result.results.summary["trust"]["kv_limit_is_a_guess"]:
        yield "the KV cache nearly filled up and its size is an estimate; set num_gpu_blocks from the server's log"
    n_answered = int(np.count_nonzero(result.is_answered))
    if n_answered < FEW_FOR_P99:
        yield f"p99 of {n_answered} requests is unreliable; it needs {FEW_FOR_P99}"


def _some(result: ReplayedLog, rows: Flags) -> str:
    """Format `3 requests (row 4 first)`."""
    place, numbers = result.log.place, result.log.place.numbers[rows]
    first = "" if len(numbers) == 1 else " first"
    return f"{_requests_of(len(numbers))} ({place.word} {numbers[0]}{first})"


def _requests_of(n: int) -> str:
    return "1 request" if n == 1 else f"{n} requests"


def _reasons(result: ReplayedLog, rows: Flags) -> str:
    reason = result.results.columns["requests"]["status_reason"]
    given = dict.fromkeys(reason.categories[code] for code in reason.codes[rows].tolist() if code >= 0)
    return "; ".join(given) or "no reason given"
