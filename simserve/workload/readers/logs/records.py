"""LogRecords of JSON that are no table: AIPerf, GuideLLM and OpenTelemetry, each request as a row of our columns.

Sources: ai-dynamo/aiperf, docs/tutorials/working-with-profile-exports.md; vllm-project/guidellm,
src/guidellm/schemas/info.py; open-telemetry/semantic-conventions, docs/gen-ai/gen-ai-spans.md; vLLM's own spans,
vllm/tracing.py. Lost: texts, gaps between single tokens, and whatever has no column of ours.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simserve.errors import TraceError
from simserve.input_files import parse_json
from simserve.workload.readers.base import MS, NS, SECONDS
from simserve.workload.readers.text_lines import decoded, line_pieces

LOAD = ("chat", "text_completion", "generate_content")
"""Operations of spans that are requests to a model; others enclose them."""

DEEPEST = 8
"""Levels of mappings that are laid flat."""


@dataclass
class LogRecords:
    """Requests of a file: the line or number of each, and what was left out, by reason."""

    rows: list[Mapping[str, Any]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    word: str = "line"


def format_of(begun: str) -> str | None:
    """Return the format of the records that a text begins with; None: it has none."""
    for name, keys in (
        ("otlp", ('"resourceSpans"',)),
        ("aiperf", ('"request_start_ns"',)),
        ("guidellm", ('"benchmarks"', '"successful"')),
    ):
        if all(key in begun for key in keys):
            return name
    return None


def read_records(path: Path, name: str) -> LogRecords:
    """Return the requests of a file of a format. Raises TraceError."""
    records = LogRecords()
    for number, document, is_line in _documents(path):
        records.word = "line" if is_line else "request"
        try:
            rows = list(FORMATS[name](document))
        except (AttributeError, KeyError, TypeError):  # a list where a mapping is due, or the like
            rule = f"is no export of {name}: a part has another shape"
            raise TraceError(f"{path}:{number}: {rule}; is it complete?") from None
        for row in rows:
            match row:
                case str(reason):
                    records.left_out[reason] += 1
                case _:
                    records.rows.append(row)
                    records.numbers.append(number if is_line else len(records.rows))
    return records


def read_array(path: Path) -> LogRecords:
    """Return the objects of one JSON array. Raises TraceError."""
    records = LogRecords(word="row")
    for _, document, _ in _documents(path):
        match document:
            case [*items] if all(type(item) is dict for item in items):
                records.rows += [flat(item) for item in items]
            case _:
                raise TraceError(f"{path}: must be an array of requests, each a JSON object; is it a log?")
    records.numbers = list(range(1, len(records.rows) + 1))
    return records


def flat(row: Mapping[str, Any], above: str = "", depth: int = 0) -> dict[str, Any]:
    """Return a mapping with the keys of those inside as `usage.prompt_tokens`; a value with its unit as `ttft_ms`."""
    if not above and dict not in map(type, row.values()):  # fast: most rows of a log are flat
        return dict(row)
    result: dict[str, Any] = {}
    for key, value in row.items():
        match value:
            case {"value": inner, "unit": str(unit)} if len(value) == 2:
                result[f"{above}{key}_{unit}"] = inner
            case dict() if depth < DEEPEST:
                result[f"{above}{key}"] = value  # which a column of numbers refuses
                result |= flat(value, f"{above}{key}.", depth + 1)
            case _:
                result[f"{above}{key}"] = value
    return result


def _documents(path: Path) -> Iterator[tuple[int, Any, bool]]:
    """Yield the JSON values of a file: one a line with its number, or one of many lines."""
    n = 0
    lines = (line for piece in line_pieces(path) for line in piece)
    for n, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except json.JSONDecodeError as error:
            if n > 1:
                rule = f"must be one JSON object a line ({error.msg}); was it cut?"
                raise TraceError(f"{path}:{n}: {rule}") from None
            break
        yield n, value, type(value) is dict and "benchmarks" not in value
    else:
        return
    try:
        yield 1, parse_json("".join(decoded(path))), False
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}:{error.lineno}: must be JSON ({error.msg}); was it cut?") from None


def _aiperf(document: Any) -> Iterator[Mapping[str, Any] | str]:
    """Yield the request of a line of `profile_export.jsonl`."""
    match document:
        case {"metadata": {"request_start_ns": start_ns, **about}, **others}:
            pass
        case _:
            yield "they have no request_start_ns"
            return
    if about.get("benchmark_phase", "profiling") != "profiling":
        yield "they are of the warm-up"
        return
    metrics = others.get("metrics")
    measured = metrics if type(metrics) is dict else {}
    failed = others.get("error") is not None or about.get("was_cancelled") is True
    turn = about.get("turn_index")
    yield {
        "arrival_s": _times(start_ns, NS),
        "prompt_tokens": _amount(measured, "input_sequence_length") or _amount(measured, "error_isl") or 1,
        "output_tokens": 0 if failed else _amount(measured, "output_sequence_length"),
        "ttft_s": _amount(measured, "time_to_first_token"),
        "e2e_s": _amount(measured, "request_latency"),
        "session_id": about.get("x_correlation_id") or about.get("conversation_id") or "",
        "turn": turn,
    }


def _amount(metrics: Mapping[str, Any], name: str) -> Any:
    """Return a metric, in seconds where it has a unit of time."""
    match metrics.get(name):
        case {"value": value, "unit": str(unit)}:
            return _times(value, SECONDS.get(unit, 1.0))
        case {"value": value}:
            return value
        case value:
            return value


def _times(value: Any, scale: float) -> Any:
    """Return a number times a factor; what is none stays, to be refused by its row."""
    return value * scale if type(value) in (int, float) and scale != 1 else value


def _guidellm(document: Any) -> Iterator[Mapping[str, Any] | str]:
    """Yield the requests of a report, of all its benchmarks."""
    match document:
        case {"benchmarks": [*benchmarks]}:
            pass
        case _:
            yield "they are of no benchmark"
            return
    for benchmark in benchmarks:
        requests = benchmark["requests"]
        for kind, failed in (("successful", False), ("errored", True)):
            yield from (_guided(request, failed) for request in requests.get(kind) or ())
        yield from ["they did not finish"] * len(requests.get("incomplete") or ())


def _guided(request: Mapping[str, Any], failed: bool) -> Mapping[str, Any]:
    info = request.get("info") or {}
    return {
        "arrival_s": request.get("request_start_time"),
        "prompt_tokens": request.get("prompt_tokens") or 1,
        "output_tokens": 0 if failed else request.get("output_tokens"),
        "ttft_s": _times(request.get("time_to_first_token_ms"), MS),
        "e2e_s": request.get("request_latency"),
        "session_id": info.get("conversation_id") or "",
        "turn": info.get("turn_index"),
    }


def _otlp(document: Any) -> Iterator[Mapping[str, Any] | str]:
    """Yield the requests of an export of spans."""
    match document:
        case {"resourceSpans": [*resources]}:
            for resource in resources:
                for scope in resource.get("scopeSpans") or ():
                    yield from map(_span, scope.get("spans") or ())
        case _:
            yield "they are of no span"


def _span(span: Mapping[str, Any]) -> Mapping[str, Any] | str:
    about = {each.get("key"): _attribute(each.get("value")) for each in span.get("attributes") or ()}
    usage = {
        side: about.get(f"gen_ai.usage.{new}_tokens", about.get(f"gen_ai.usage.{old}_tokens"))
        for side, new, old in (("prompt", "input", "prompt"), ("output", "output", "completion"))
    }
    if about.get("gen_ai.operation.name", LOAD[0]) not in LOAD or usage["prompt"] is None:
        return "their spans are of no request to a model"
    starts, ends = (_times(_whole(span.get(f"{end}TimeUnixNano")), NS) for end in ("start", "end"))
    return {
        "arrival_s": starts,
        "prompt_tokens": usage["prompt"],
        "output_tokens": 0 if "error.type" in about else usage["output"],
        "max_tokens": about.get("gen_ai.request.max_tokens"),
        "ttft_s": about.get("gen_ai.latency.time_to_first_token"),
        "e2e_s": ends - starts if None not in (starts, ends) else None,
        "session_id": about.get("gen_ai.conversation.id") or "",
        "model": about.get("gen_ai.request.model") or about.get("gen_ai.response.model"),
    }


def _attribute(value: Any) -> Any:
    match value:
        case {"intValue": number}:
            return _whole(number)
        case {"doubleValue": number} | {"stringValue": number}:
            return number
    return None


def _whole(text: Any) -> int | None:
    """Return a whole number of protobuf's JSON, which has it as text."""
    return int(text) if str(text).isdecimal() else None


FORMATS: Mapping[str, Callable[[Any], Iterator[Mapping[str, Any] | str]]] = {
    "aiperf": _aiperf,
    "guidellm": _guidellm,
    "otlp": _otlp,
}
"""What yields the requests of a JSON value, or why one is left out."""
