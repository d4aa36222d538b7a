"""Results of `vllm bench serve --save-result --save-detailed`, and of tools with the same keys (SGLang's).

Keys: vllm-project/vllm, vllm/benchmarks/serve.py, `benchmark`; times in seconds. Without --save-detailed, results
lack the lists of requests except start_times.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from simserve.errors import TraceError
from simserve.tables.columns import Flags, Floats
from simserve.workload.arrivals.vllm_bench import VllmBench
from simserve.workload.readers.base import Cells, Place, answered, items, refuse_rows, shown
from simserve.workload.readers.cells import AMOUNT, NUMBER, CellKind, numbers
from simserve.workload.readers.json_rows import read_object
from simserve.workload.readers.logs.base import Log, filled_in, in_order
from simserve.workload.streams import streams
from simserve.workload.trace import Trace

DETAILED = "--save-result --save-detailed"

ARRAYS = ("start_times", "input_lens", "output_lens")
"""Lists that a trace needs."""

LISTS = ("input_lens", "output_lens", "ttfts", "itls")
SUMMARY = ("mean_ttft_ms", "total_input_tokens", "request_throughput")
"""Keys of any result, with or without lists."""


class WithoutRequests(TraceError):
    """A result without its lists of requests, of which `read_summary` tells rate and mean lengths."""


ITLS_RULE = "itls must be a list of times, none negative"


def is_result(value: Mapping[str, Any]) -> bool:
    """Tell a benchmark's result from a request."""
    return not value.keys().isdisjoint((*LISTS, *SUMMARY))


@dataclass(frozen=True)
class BenchSummary:
    """What a result tells without its lists of requests."""

    n_requests: int
    rate_per_s: float
    """As asked for; of an unlimited one as served."""
    n_clients: int | None
    """Clients of a closed loop; None of an open load."""
    prompt_tokens: float
    output_tokens: float
    """Mean lengths."""
    model: str | None


def read(path: Path, seed: int) -> Log:
    """Return the log of a result; `seed` draws arrivals that it did not record. Raises TraceError."""
    result = read_object(path, KINDS)
    _check_lists(path, result)
    place = items(path, len(result["input_lens"]), "request")
    prompts, outputs = result["input_lens"], result["output_lens"]
    is_failed = outputs == 0 if result.get("errors") is None else (outputs == 0) | result["errors"]
    kept = np.flatnonzero(~is_failed)
    if not len(kept):
        got = f"{len(outputs)} that failed" if len(outputs) else "none"
        raise TraceError(f"{path}: must have an answered request, got {got}; run the benchmark again")
    log = _sent(path, result, Log(place, Trace(np.zeros(len(outputs)), prompts, outputs, outputs), {}), seed)
    place, trace = place.take(kept), log.trace.take(kept)
    ttft_s, decode_s = numbers(place, "ttfts", result["ttfts"][kept]), result["itls"][kept]
    refuse_rows(place, ttft_s <= 0, "ttfts must be more than 0 (did the server stream?)", ttft_s)
    refuse_rows(place, np.isnan(decode_s), ITLS_RULE, decode_s)
    given = {"ttft_s": ttft_s, "e2e_s": ttft_s + decode_s}
    measured = filled_in(place, trace.output_tokens.astype(np.float64), given)
    n_failed = len(outputs) - len(kept)
    unpaired = ("only percentiles can be compared, not requests one by one",) if log.arrivals == "drawn" else ()
    text = "max_tokens of each request is its output length, as the benchmark ignores the end of sequence"
    more: dict[str, Any] = {
        "duration_s": _number(path, result, "duration", None),
        "n_failed": n_failed,
        "assumed": ("; ".join((*log.assumed, *unpaired)), text),
        "model": _model(result),
    }
    return in_order(replace(log, place=place, trace=trace, measured=measured, **more))


def read_trace(path: Path) -> Trace:
    """Return the requests of a result, sent as in its log; arrivals that it did not record are drawn with seed 0.
    Raises TraceError."""
    result = read_object(path, dict.fromkeys(ARRAYS, NUMBER))
    missing = [key for key in ARRAYS[1:] if not isinstance(result.get(key), np.ndarray)]
    if missing:
        raise TraceError(f"{path}: {', '.join(missing)} is missing; run the benchmark with {DETAILED}")
    arrays = [key for key in ARRAYS if result.get(key) is not None]
    _refuse_unlike(path, result, arrays)
    prompts, outputs = result["input_lens"], result["output_lens"]
    place = items(path, len(prompts), "request")
    log = _sent(path, result, Log(place, Trace(np.zeros(len(prompts)), prompts, outputs), {}), 0)
    if log.concurrency is not None:
        rule = f"has no start_times, and {log.concurrency} clients sent its requests after answers"
        remedy = f"give client: {{kind: closed_loop, concurrency: {log.concurrency}}} with its lengths"
        raise TraceError(f"{path}: {rule}; {remedy}, or run a vLLM that writes start_times")
    trace = answered(place, log.trace, "requests (no output tokens)")
    return trace if log.arrivals == "measured" else replace(trace, notes=(*log.assumed, *trace.notes))


def read_summary(path: Path) -> BenchSummary:
    """Return what a result tells without its lists of requests. Raises TraceError."""
    result = read_object(path, {})
    n = _number(path, result, "completed", None)
    totals = [_number(path, result, f"total_{side}_tokens", None) for side in ("input", "output")]
    served_per_s = _number(path, result, "request_throughput", None)
    if n is None or None in (*totals, served_per_s):
        keys = "completed, total_input_tokens, total_output_tokens, request_throughput"
        raise TraceError(f"{path}: must have {keys}; run the benchmark with {DETAILED}")
    concurrency, rate_per_s = (_number(path, result, key, math.inf) for key in ("max_concurrency", "request_rate"))
    is_closed = rate_per_s == math.inf > concurrency
    rate_per_s = served_per_s if rate_per_s == math.inf else rate_per_s
    prompts, outputs = (total / n for total in totals)
    n_clients = int(concurrency) if is_closed else None
    return BenchSummary(int(n), rate_per_s, n_clients, prompts, outputs, _model(result))


def _model(result: Mapping[str, Any]) -> str | None:
    match result:
        case {"model_id": str(name)} | {"model": str(name)}:
            return name
    return None


def _check_lists(path: Path, result: Mapping[str, Any]) -> None:
    missing = [key for key in LISTS if not isinstance(result.get(key), np.ndarray)]
    if missing:
        got = "a summary only" if len(missing) == len(LISTS) else f"no {', '.join(missing)}"
        remedy = f"run the benchmark with {DETAILED}"
        raise WithoutRequests(f"{path}: must have the lists {', '.join(LISTS)}, got {got}; {remedy}")
    others = [key for key in ("start_times", "errors") if result.get(key) is not None]
    wrong = next((key for key in others if not isinstance(result[key], np.ndarray)), None)
    if wrong is not None:
        raise TraceError(f"{path}: {wrong} must be a list, one for each request, got {shown(result[wrong])}; remove it")
    _refuse_unlike(path, result, [*LISTS, *others])


def _refuse_unlike(path: Path, result: Mapping[str, Any], lists: Sequence[str]) -> None:
    """Raise TraceError where lists of the requests differ in length."""
    if len({len(result[key]) for key in lists}) > 1:
        got = ", ".join(str(len(result[key])) for key in lists)
        raise TraceError(f"{path}: {', '.join(lists)} must have the same length, got {got}; was the file edited?")


def _errors(place: Place, name: str, cells: Cells) -> Flags:
    """Mark requests with an error. Raises TraceError."""
    is_bad = np.array([not isinstance(error, str | None) for error in cells], np.bool_)
    refuse_rows(place, is_bad, f"{name} must be text, empty for none", cells)
    return np.array([bool(error) for error in cells], np.bool_)


def _decode_s(place: Place, _: str, cells: Cells) -> Floats:
    """Sum the gaps of each request, NaN without a list. Raises TraceError."""
    sums = np.array([np.nan if gaps is None else _sum(gaps) for gaps in cells], np.float64)
    refuse_rows(place, np.isinf(sums), ITLS_RULE, cells)
    return sums


def _sum(gaps: Any) -> float:
    """Sum the gaps; infinite for invalid ones."""
    if not isinstance(gaps, list) or not set(map(type, gaps)) <= {int, float}:
        return math.inf
    try:
        total = math.fsum(gaps)
        return total if min(gaps, default=0) >= 0 and math.isfinite(total) else math.inf
    except (ValueError, OverflowError):
        return math.inf


KINDS = {
    **dict.fromkeys(("input_lens", "output_lens", "start_times"), NUMBER),
    "ttfts": AMOUNT,
    "itls": CellKind("value", _decode_s),
    "errors": CellKind("value", _errors),
}


def _sent(path: Path, result: Mapping[str, Any], log: Log, seed: int) -> Log:
    """Set the send times: as recorded, else as the benchmark was configured."""
    concurrency = _number(path, result, "max_concurrency", None)
    rate_per_s = _number(path, result, "request_rate", math.inf)
    capped = "" if concurrency is None else f"; the limit of {concurrency:g} requests in flight is not applied"
    if result.get("start_times") is not None:
        starts = result["start_times"]
        with np.errstate(over="ignore"):  # an infinite arrival is refused with the others
            trace = replace(log.trace, arrival_s=starts - starts.min(initial=np.inf))
        n_clients = int(concurrency) if concurrency is not None and rate_per_s == math.inf else None
        text = f"requests are sent at the times of the log{capped}"
        return replace(log, trace=trace, n_clients=n_clients, assumed=(text,))
    if result.get("ramp_up_strategy") is not None:
        rule = "start_times are required when the rate ramps up"
        raise TraceError(f"{path}: {rule}, got none; run a vLLM that writes them")
    if concurrency is not None and rate_per_s == math.inf:
        text = f"send times are unknown: a closed loop of {concurrency:g} clients sends them in order"
        n = int(concurrency)
        return replace(log, arrivals="closed_loop", concurrency=n, n_clients=n, assumed=(text,))
    if rate_per_s == math.inf:
        return replace(log, arrivals="at_once", assumed=("all requests are sent at once, as request_rate is inf",))
    burstiness = _number(path, result, "burstiness", 1.0) or 1.0
    try:
        process = VllmBench(rate_per_s=rate_per_s, burstiness=burstiness)
    except ValidationError:
        got = f"{rate_per_s:g} and {burstiness:g}"
        raise TraceError(
            f"{path}: request_rate and burstiness must be in range, got {got}; was the file edited?"
        ) from None
    arrival_s = process.first(len(log), streams(seed))
    text = f"send times are unknown: arrivals are drawn at {rate_per_s:g} per second, burstiness {burstiness:g}{capped}"
    return replace(log, trace=replace(log.trace, arrival_s=arrival_s), arrivals="drawn", assumed=(text,))


def _number(path: Path, result: Mapping[str, Any], key: str, otherwise: Any) -> Any:
    """Return a positive number of the result, or `otherwise` if missing; "inf" is valid. Raises TraceError."""
    value = result.get(key)
    if value is None:
        return otherwise
    try:
        number = float(value) if type(value) in (int, float) or value == "inf" else math.nan
    except OverflowError:
        number = math.inf
    is_whole = key != "max_concurrency" or number == np.floor(number) < math.inf
    if not number > 0 or not is_whole:
        what = "a positive whole number" if key == "max_concurrency" else "a positive number"
        raise TraceError(f"{path}: {key} must be {what}, got {shown(value)}; was the file edited?")
    return number
