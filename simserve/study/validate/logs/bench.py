"""Results of `vllm bench serve --save-result --save-detailed`, and of tools with the same keys (SGLang's).

Keys: vllm-project/vllm, vllm/benchmarks/serve.py, `benchmark`; times in seconds. Without --save-detailed, results
lack the lists of requests except start_times.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.study.validate.logs.base import Log, filled_in, in_order
from simserve.tables.columns import Flags, Floats
from simserve.workload.arrivals.vllm_bench import VllmBench
from simserve.workload.readers.base import Place, items, numbers, refuse_rows, shown
from simserve.workload.streams import streams
from simserve.workload.trace import Trace

LISTS = ("input_lens", "output_lens", "ttfts", "itls")
SUMMARY = ("mean_ttft_ms", "total_input_tokens", "request_throughput")
"""Keys of any result, with or without lists."""


def is_result(value: Mapping[str, Any]) -> bool:
    """Tell a benchmark's result from a request."""
    return any(key in value for key in (*LISTS, *SUMMARY))


def read(path: Path, result: Mapping[str, Any], seed: int) -> Log:
    """Return the log of a result; `seed` draws arrivals that it did not record. Raises TraceError."""
    _check_lists(path, result)
    place = items(path, len(result["input_lens"]), "request")
    prompts, outputs = (numbers(place, key, result[key]) for key in ("input_lens", "output_lens"))
    kept = np.flatnonzero(~_failed(result, outputs))
    if not len(kept):
        got = f"{len(outputs)} that failed" if len(outputs) else "none"
        raise TraceError(f"{path}: must have an answered request, got {got}; run the benchmark again")
    log = _sent(path, result, Log(place, Trace(np.zeros(len(outputs)), prompts, outputs, outputs), {}), seed)
    place, trace = place.take(kept), log.trace.take(kept)
    measured = _measured(place, trace.output_tokens, [(result["ttfts"][i], result["itls"][i]) for i in kept])
    n_failed = len(outputs) - len(kept)
    text = "max_tokens of each request is its output length, as the benchmark ignores the end of sequence"
    duration_s = _number(path, result, "duration", None)
    more: dict[str, Any] = {"duration_s": duration_s, "n_failed": n_failed, "assumed": (*log.assumed, text)}
    return in_order(replace(log, place=place, trace=trace, measured=measured, **more))


def _check_lists(path: Path, result: Mapping[str, Any]) -> None:
    missing = [key for key in LISTS if not isinstance(result.get(key), list)]
    if missing:
        got = "a summary only" if len(missing) == len(LISTS) else f"no {', '.join(missing)}"
        remedy = "run the benchmark with --save-result --save-detailed"
        raise TraceError(f"{path}: must have the lists {', '.join(LISTS)}, got {got}; {remedy}")
    lists = [*LISTS, *(key for key in ("start_times", "errors") if isinstance(result.get(key), list))]
    if len({len(result[key]) for key in lists}) > 1:
        got = ", ".join(str(len(result[key])) for key in lists)
        raise TraceError(f"{path}: {', '.join(lists)} must have the same length, got {got}; was the file edited?")


def _failed(result: Mapping[str, Any], outputs: Floats) -> Flags:
    """Mark requests with an error, or without a token."""
    errors = result.get("errors") or [""] * len(outputs)
    failed: Flags = (outputs == 0) | np.array([bool(error) for error in errors], np.bool_)
    return failed


def _measured(place: Place, outputs: NDArray[Any], rows: list[tuple[Any, Any]]) -> dict[str, Floats]:
    ttft_s = numbers(place, "ttfts", [ttft for ttft, _ in rows])
    refuse_rows(place, ttft_s <= 0, "ttfts must be more than 0 (did the server stream?)", ttft_s.tolist())
    gaps = [each for _, each in rows]
    decode_s = np.array([_sum(each) for each in gaps])
    refuse_rows(place, ~(decode_s >= 0), "itls must be a list of times, none negative", gaps)
    return filled_in(place, outputs.astype(np.float64), {"ttft_s": ttft_s, "e2e_s": ttft_s + decode_s})


def _sum(gaps: Any) -> float:
    """Sum the gaps; NaN for invalid ones."""
    try:
        total = math.fsum(gaps)
        return total if all(gap >= 0 for gap in gaps) and math.isfinite(total) else math.nan
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _sent(path: Path, result: Mapping[str, Any], log: Log, seed: int) -> Log:
    """Set the send times: as recorded, else as the benchmark was configured."""
    concurrency = _number(path, result, "max_concurrency", None)
    rate_per_s = _number(path, result, "request_rate", math.inf)
    capped = "" if concurrency is None else f"; the limit of {concurrency:g} requests in flight is not applied"
    if isinstance(result.get("start_times"), list):
        starts = numbers(log.place, "start_times", result["start_times"])
        trace = replace(log.trace, arrival_s=starts - starts.min())
        return replace(log, trace=trace, assumed=(f"requests are sent at the times of the log{capped}",))
    if result.get("ramp_up_strategy") is not None:
        rule = "start_times are required when the rate ramps up"
        raise TraceError(f"{path}: {rule}, got none; run a vLLM that writes them")
    if concurrency is not None and rate_per_s == math.inf:
        text = f"send times are unknown: a closed loop of {concurrency:g} clients sends them in order"
        return replace(log, arrivals="closed_loop", concurrency=int(concurrency), assumed=(text,))
    if rate_per_s == math.inf:
        return replace(log, arrivals="at_once", assumed=("all requests are sent at once, as request_rate is inf",))
    burstiness = _number(path, result, "burstiness", 1.0) or 1.0
    arrival_s = VllmBench(rate_per_s=rate_per_s, burstiness=burstiness).first(len(log), streams(seed))
    text = (
        f"send times are unknown: arrivals are drawn at {rate_per_s:g} per second, burstiness "
        f"{burstiness:g}, so only percentiles can be compared, not requests one by one{capped}"
    )
    return replace(log, trace=replace(log.trace, arrival_s=arrival_s), arrivals="drawn", assumed=(text,))


def _number(path: Path, result: Mapping[str, Any], key: str, otherwise: Any) -> Any:
    """Return a positive number of the result, or `otherwise` if missing; "inf" is valid. Raises TraceError."""
    value = result.get(key)
    if value is None:
        return otherwise
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    is_whole = key != "max_concurrency" or number == np.floor(number) < math.inf
    if not number > 0 or not is_whole:
        what = "a positive whole number" if key == "max_concurrency" else "a positive number"
        raise TraceError(f"{path}: {key} must be {what}, got {shown(value)}; was the file edited?")
    return number
