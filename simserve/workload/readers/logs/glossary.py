"""Glossary of logs: the names and units under which tables of requests have their columns."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simserve.errors import SimserveError, TraceError, did_you_mean
from simserve.workload.readers.base import SECONDS, names_shown, without_unit
from simserve.workload.readers.logs.base import METRICS

UNITS = {"_s": 1.0, "": 1.0} | {f"_{unit}": seconds for unit, seconds in SECONDS.items()}
"""Suffixes of time columns; no suffix is seconds, of an epoch what its size tells."""

ALIASES: Mapping[str, tuple[str, ...]] = {
    "arrival_s": (
        *("arrival", "arrival_time", "arrived_at", "start_time", "request_start_time", "send_time", "sent_at"),
        *("timestamp", "time_stamp", "start", "starttime", "created_at", "request_start", "time"),
    ),
    "prompt_tokens": (
        *("prompt_tokens", "prompt_len", "prompt_length", "num_prompt_tokens", "input_tokens", "input_len"),
        *("input_length", "input_sequence_length", "num_input_tokens", "isl", "num_prefill_tokens"),
        *("request_num_prefill_tokens", "contexttokens", "request_tokens", "usage.prompt_tokens"),
        *("usage.input_tokens", "tokens_in"),
    ),
    "output_tokens": (
        *("output_tokens", "output_len", "output_length", "output_sequence_length", "num_output_tokens", "osl"),
        *("num_decode_tokens", "request_num_decode_tokens", "completion_tokens", "generated_tokens"),
        *("num_generation_tokens", "generatedtokens", "response_tokens", "usage.completion_tokens"),
        *("usage.output_tokens", "tokens_out"),
    ),
    "max_tokens": ("max_tokens", "max_output_tokens", "max_completion_tokens", "max_new_tokens"),
    "ttft_s": ("ttft", "time_to_first_token", "first_token_latency"),
    "tpot_s": ("tpot", "time_per_output_token", "inter_token_latency"),
    "e2e_s": (
        *("e2e", "e2el", "e2e_latency", "e2e_time", "end_to_end_latency", "latency", "request_latency"),
        *("elapsed_time", "duration"),
    ),
    "first_token_s": ("first_token", "first_token_time", "completionstarttime", "completion_start_time"),
    "end_s": ("end", "end_time", "endtime", "finish_time", "finished_at", "request_end_time", "completed_at"),
    "session_id": ("session_id", "conversation_id", "session"),
    "turn": ("turn", "turn_index"),
    "model": ("model", "model_name", "model_id"),
    "pod": ("pod", "pod_name", "instance", "replica", "server", "worker_id"),
    "version": ("engine_version", "server_version", "vllm_version", "sglang_version", "version"),
}
"""Our columns and their other names, in lower case and without a unit; the first match is read."""

NEEDED = ("arrival_s", "prompt_tokens", "output_tokens")


@dataclass(frozen=True)
class LogColumn:
    """A column of the file that matches one of ours."""

    name: str
    scale: float | None
    """Factor from its unit to ours; None of a time without a unit."""


@dataclass(frozen=True)
class LogReading:
    """How a log is read: columns by their names in the file, and whether it needs latencies."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Columns of the file by ours, which the glossary need not know."""
    compares: bool = True
    """Whether a file without a latency is of no use."""

    def matched(self, path: Path, header: Sequence[str]) -> dict[str, LogColumn]:
        """Return the columns of a file that match ours, those named first. Raises TraceError for a needed one that is
        missing, for two that could be the arrival, and, where it `compares`, for a file without a latency."""
        plain = {name.lower().replace(" ", "_").replace("-", "_"): name for name in reversed(header)}
        columns = _named(path, header, self.names)
        for ours, aliases in ALIASES.items():
            units = UNITS if ours.endswith("_s") else {"": 1.0}
            there = [(name + unit, scale) for name in aliases for unit, scale in units.items() if name + unit in plain]
            if not there or ours in columns:
                continue
            if ours == "arrival_s":
                first, *others = dict.fromkeys(plain[name] for name, _ in there)
                if others and not first.lower().startswith("arriv"):
                    rule = f"could be the arrival: {' or '.join((first, *others))}"
                    remedy = f"say which with --map arrival_s={first}"
                    raise TraceError(f"{path}: {len(others) + 1} columns {rule}; {remedy}")
            name, scale = there[0]
            is_bare = units is UNITS and name in aliases
            columns[ours] = LogColumn(plain[name], None if is_bare else scale)
        got = names_shown(header)
        missing = [name for name in NEEDED if name not in columns]
        if missing:
            verb = "column {} is" if len(missing) == 1 else "columns {} are"
            remedy = f"{missing[0]} may also be called {', '.join(ALIASES[missing[0]][:6])}; others by --map"
            raise TraceError(f"{path}: {verb.format(', '.join(missing))} missing, got {got}; {remedy}")
        if self.compares and not columns.keys() & {*METRICS, "first_token_s", "end_s"}:
            raise TraceError(f"{path}: must have some of {', '.join(METRICS)}, got {got}; nothing can be compared")
        return columns


NOTHING = LogReading()
"""A log that is read as the glossary says."""


def given_names(text: str | None, known: Collection[str] = ()) -> dict[str, str]:
    """Parse `arrival_s=startTime,prompt_tokens=usage.prompt`. Raises SimserveError.

    known: our names, of which the part before a slash counts; by default those of a log.
    """
    names: dict[str, str] = {}
    for pair in (text or "").split(",") if text else ():
        ours, equals, theirs = (part.strip() for part in pair.partition("="))
        is_ours = ours.partition("/")[0] in known if known else _ours(ours) is not None
        if not equals or not theirs or not is_ours:
            remedy = f"ours are {', '.join(known or ALIASES)}"
            raise SimserveError(f"--map: must be OURS=THEIRS,..., got {pair}; {remedy}")
        names[ours] = theirs
    return names


def _ours(written: str) -> tuple[str, float | None] | None:
    """Return the column of ours that a name means, and the factor of its unit: `ttft_ms` is ttft_s in milliseconds."""
    if written in ALIASES:
        return written, None
    stem, scale = without_unit(written)
    return None if scale is None or f"{stem}_s" not in ALIASES else (f"{stem}_s", scale)


def _named(path: Path, header: Sequence[str], given: Mapping[str, str]) -> dict[str, LogColumn]:
    columns = {}
    for written, theirs in given.items():
        if theirs not in header:
            raise TraceError(f"{path}: --map {written}={theirs}: no such column; {did_you_mean(theirs, header)}")
        ours, scale = _ours(written) or (written, None)
        columns[ours] = LogColumn(theirs, without_unit(theirs.lower())[1] if scale is None else scale)
    return columns
