"""Replay facts: a replayed log as plain data, for --json, the page and the terminal alike."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from simserve.metrics.goal import FEW_FOR_P99
from simserve.scenario import PoolSetup
from simserve.study.validate.log_errors import Group, Replayed, Sides
from simserve.study.validate.validate import Errors
from simserve.tables.columns import Flags

WORST = 5
WORST_OF = ("ttft_s", "tpot_s")


def replay_facts(found: Replayed) -> dict[str, Any]:
    """Everything that is said of a replayed log; times in seconds, errors as shares of what was measured."""
    log, scenario = found.log, found.scenario
    metrics = found.metrics
    return {
        "log": {
            "path": str(log.place.path),
            "n_requests": len(log),
            "n_failed": log.n_failed,
            "n_unfinished": log.n_unfinished,
            "n_compared": int(np.count_nonzero(found.is_answered)) - sum(_lost(found).values()),
            "arrivals": log.arrivals,
            "concurrency": log.concurrency,
        },
        "scenario": {"name": scenario.name, "digest": scenario.digest, "seed": scenario.seed},
        "assumed": [*log.assumed, *dict.fromkeys(map(_costs, scenario.setups))],
        "warnings": list(_warnings(found)),
        "distributions": {
            name: {
                "n": int(np.count_nonzero(found.compared(name))),
                **{level: _sides(sides) for level, sides in found.distribution(name).items()},
            }
            for name in metrics
        },
        "errors": {
            name: {
                "overall": _errors(overall),
                "by_load": _groups(found.by_load(name)),
                "by_prompt_tokens": _groups(found.by_prompt(name)),
            }
            for name in metrics
            if (overall := found.errors(name)) is not None
        },
        "makespan_s": _sides(found.makespan_s),
        "output_tokens_per_s": _sides(found.output_tokens_per_s),
        "worst": {name: _worst(found, name) for name in WORST_OF if name in metrics and log.is_paired},
        "requests": _requests(found),
    }


def _sides(sides: Sides) -> dict[str, float]:
    return {"measured": sides.measured, "predicted": sides.predicted, "error_frac": sides.error_frac}


def _errors(errors: Errors) -> dict[str, float]:
    return {name: value for name, value in asdict(errors).items() if name != "interval"}


def _groups(groups: Sequence[Group]) -> list[dict[str, float]]:
    return [{"lowest": each.lowest, "highest": each.highest, **_errors(each.errors)} for each in groups]


def _requests(found: Replayed) -> dict[str, Any]:
    """Columns, a row a request; what is null never came, or is not in the log."""
    log, requests = found.log, found.results.columns["requests"]
    return {
        log.place.word: log.place.numbers,
        "arrival_s": log.trace.arrival_s if log.has_instants else None,
        "prompt_tokens": log.trace.prompt_tokens,
        "output_tokens": log.trace.output_tokens,
        **{f"measured_{name}": column for name, column in log.measured.items()},
        **{f"predicted_{name}": found.predicted[name] for name in log.measured},
        "predicted_status": [requests["status"].categories[code] for code in requests["status"].codes],
    }


def _worst(found: Replayed, metric: str) -> list[dict[str, Any]]:
    log = found.log
    return [
        {
            "request": f"{log.place.word} {log.place.numbers[row]}",
            "arrival_s": float(log.trace.arrival_s[row]) if log.has_instants else None,
            "prompt_tokens": int(log.trace.prompt_tokens[row]),
            "output_tokens": int(log.trace.output_tokens[row]),
            "measured": float(log.measured[metric][row]),
            "predicted": float(found.predicted[metric][row]),
            "ratio": float(found.signed(metric)[row] + 1),
        }
        for row in found.worst(metric, WORST)
    ]


def _costs(setup: PoolSetup) -> str:
    """Where the costs of a pool's steps come from, in a line."""
    server = f"{setup.model.name} on {setup.tensor} x {setup.gpu.name} under {setup.engine.name}"
    calibration = setup.calibration
    if calibration is None:
        return f"{server}: step costs are a roofline with assumed efficiencies"
    timed = f"kernels of {calibration.gpu}, timed under {calibration.engine} {calibration.engine_version}"
    return f"{server}: step costs are {timed}"


def _lost(found: Replayed) -> dict[str, int]:
    """Requests that the server answered and the simulated one did not, by what became of them there."""
    status = found.results.columns["requests"]["status"]
    fates = ("rejected", "timed_out", "unfinished")
    return {fate: int(np.count_nonzero(found.is_answered & status.is_(fate))) for fate in fates}


def _warnings(found: Replayed) -> Iterator[str]:
    """What a reader of the numbers must know, what matters most first."""
    log, requests, lost = found.log, found.results.columns["requests"], _lost(found)
    if lost["rejected"]:
        refused = found.is_answered & requests["status"].is_("rejected")
        yield f"the server served {_some(found, refused)} that the simulator refuses ({_reasons(found, refused)})"
    stuck = found.is_answered & (requests["status"].is_("unfinished") | requests["status"].is_("timed_out"))
    if stuck.any():
        yield f"the server served {_some(found, stuck)} that never end in the simulator ({_reasons(found, stuck)})"
    is_cut = requests["output_tokens"] < log.trace.output_tokens
    if is_cut.any():
        yield f"the simulator cuts {_some(found, is_cut)} short, at max_tokens or max_model_len"
    if log.n_failed:
        yield f"{_requests_of(log.n_failed)} of the log failed and are neither sent nor compared"
    if log.n_unfinished:
        yield f"{_requests_of(log.n_unfinished)} of the log did not finish and are sent but not compared"
    yield from (*found.results.facts.notes, *found.results.facts.warnings)
    if found.results.summary["trust"]["kv_limit_is_a_guess"]:
        yield "the KV cache nearly filled up, and its size is an estimate; give num_gpu_blocks from the server's log"
    n_answered = int(np.count_nonzero(found.is_answered))
    if n_answered < FEW_FOR_P99:
        yield f"p99 of {n_answered} requests is a guess; {FEW_FOR_P99} are the least"


def _some(found: Replayed, rows: Flags) -> str:
    """`3 requests (row 4 first)`."""
    place, numbers = found.log.place, found.log.place.numbers[rows]
    first = "" if len(numbers) == 1 else " first"
    return f"{_requests_of(len(numbers))} ({place.word} {numbers[0]}{first})"


def _requests_of(n: int) -> str:
    return "1 request" if n == 1 else f"{n} requests"


def _reasons(found: Replayed, rows: Flags) -> str:
    reason = found.results.columns["requests"]["status_reason"]
    given = dict.fromkeys(reason.categories[code] for code in reason.codes[rows].tolist() if code >= 0)
    return "; ".join(given) or "no reason given"
