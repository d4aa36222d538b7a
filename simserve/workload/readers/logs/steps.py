"""Lines that an engine writes about its steps: SGLang's decode lines, vLLM's ten-second lines, Prometheus' scrapes.

Each line tells how many requests ran, the tokens in their KV cache, and the tokens a second since the line before it.
A running request gets one token a step, so their ratio is the mean time of a step.
Sources: SGLang, managers/scheduler_metrics_mixin.py; vLLM, v1/metrics/loggers.py.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from simserve.errors import TraceError
from simserve.tables.columns import Floats
from simserve.workload.readers.base import Place
from simserve.workload.readers.logs.base import Arrivals
from simserve.workload.readers.prometheus import MetricSeries, increases, is_range, metric_of, series_of
from simserve.workload.readers.text_lines import head, line_pieces

N = r"([\d.]+)"
SGLANG = re.compile(rf"Decode batch.*?#running-req: {N}.*?#(?:full )?token: {N}.*?gen throughput \(token/s\): {N}")
VLLM = re.compile(
    rf"prompt throughput: {N} tokens/s, Avg generation throughput: {N} tokens/s, Running: {N} reqs"
    rf".*?KV cache usage: {N}%(?:, Prefix cache hit rate: {N}%)?"
)
SGLANG_PROMPTS = "Prefill batch"

SGLANG_STEPS = 40
"""Steps of a decode line, by default (`--decode-log-interval`)."""

STEADY = 0.25
"""Most that running requests may change from one line of vLLM, or scrape, to the next, as a share: a line tells their
number at its end, and throughput since the one before it."""

ENOUGH = 40
"""Lines without prompts that are used alone: what prompts add is a mean over single steps that no line tells."""

SCRAPED = {
    "running": ("num_requests_running",),
    "usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "output": ("generation_tokens_total", "generation_tokens"),
    "prompt": ("prompt_tokens_total", "prompt_tokens"),
    "cached": ("prefix_cache_hits_total", "prefix_cache_hits"),
}
"""vLLM's metrics that tell steps; the last, tokens that the prefix cache held, may be missing."""


@dataclass(frozen=True)
class StepLog:
    """Mean times of steps; row i of every column is line i."""

    place: Place
    """Place of each line in the file."""
    running: Floats
    """Running requests, `(n_lines,)`, as are all columns."""
    kv_tokens: Floats
    """Tokens in the KV cache; NaN where the line has a share, `kv_frac`, in its place."""
    kv_frac: Floats
    prompt_tokens: Floats
    """Prompt tokens computed for each output token."""
    measured: Mapping[str, Floats]
    """The mean time of a step in seconds, as TPOT of the running requests."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Lines by reason."""
    arrivals: Arrivals = "measured"
    n_clients: int | None = None
    unit: Literal["lines"] = "lines"

    def __len__(self) -> int:
        return len(self.running)


def is_steps(path: Path) -> bool:
    """Tell whether a file has lines about steps: those of an engine, or scrapes of its metrics."""
    if path.suffix == ".parquet" or not path.is_file():
        return False
    text = head(path)
    is_scraped = is_range(text) and SCRAPED["running"][0] in text
    return is_scraped or SGLANG.search(text) is not None or VLLM.search(text) is not None


def read_steps(path: Path) -> StepLog:
    """Read what an engine says of its steps. Raises TraceError for a file with no line that tells one."""
    if is_range(head(path)):
        return _scrapes(path)
    rows: list[tuple[float, ...]] = []
    has_prompts, n_mixed, before = False, 0, 0.0
    for at, line in enumerate(chain.from_iterable(line_pieces(path)), 1):
        has_prompts |= SGLANG_PROMPTS in line
        if matched := SGLANG.search(line):
            running, tokens, rate = map(float, matched.groups())
            if running and rate and not has_prompts:
                rows.append((at, before or running, running, tokens - running * SGLANG_STEPS / 2, np.nan, rate, 0.0))
            n_mixed, has_prompts, before = n_mixed + has_prompts, False, running
        elif matched := VLLM.search(line):
            prompts, rate, running, usage, hit = (float(each or 0) for each in matched.groups())
            if running and rate:
                rows.append((at, before, running, np.nan, usage / 100, rate, prompts * (1 - hit / 100)))
            before = running
    return _steady(path, "line", rows, {"with a prompt since the line before": n_mixed})


def _scrapes(path: Path) -> StepLog:
    """Read scrapes of vLLM's metrics, each against the one before it. Raises TraceError where some are missing."""
    servers: dict[str, dict[str, MetricSeries]] = {}
    for each in series_of(path):
        labels = str(sorted((key, value) for key, value in each.labels.items() if key != "__name__"))
        names = [name for name, theirs in SCRAPED.items() if metric_of(each) in theirs]
        servers.setdefault(labels, {}).update(dict.fromkeys(names, each))
    rows: list[tuple[float, ...]] = []
    for metrics in filter(None, servers.values()):
        if missing := [name for key, (name, *_) in SCRAPED.items() if key not in {*metrics, "cached"}]:
            raise TraceError(f"{path}: must have {', '.join(missing)} of each server; add them to the query")
        at_s = metrics["running"].at_s
        seen = {name: np.interp(at_s, each.at_s, each.values) for name, each in metrics.items()}
        a_second = {name: increases(each) / np.diff(at_s) for name, each in seen.items()}
        cached = a_second.get("cached", np.zeros(len(at_s) - 1))
        usage = (seen["usage"][1:] + seen["usage"][:-1]) / 2
        before, running = seen["running"][:-1], seen["running"][1:]
        numbers, none = len(rows) + 1 + np.arange(len(usage)), np.full(len(usage), np.nan)
        prompts = np.maximum(a_second["prompt"] - cached, 0.0)
        each_scrape = np.stack([numbers, before, running, none, usage, a_second["output"], prompts], axis=1)
        rows += list(map(tuple, each_scrape[(running > 0) & (a_second["output"] > 0)].tolist()))
    return _steady(path, "scrape", rows, {})


def _steady(path: Path, word: str, rows: Sequence[tuple[float, ...]], left_out: Mapping[str, int]) -> StepLog:
    """Return the log of lines between which the number of running requests hardly changes. Raises TraceError for none.

    rows: number, running requests at the line before and at this one, tokens or share of the cache, output and computed
    prompt tokens a second.
    """
    numbers, before, running, kv_tokens, kv_frac, output, prompts = np.array(rows, np.float64).reshape(-1, 7).T
    steady = np.abs(before - running) <= STEADY * running
    pure = steady & (prompts == 0)
    kept = np.flatnonzero(pure if np.count_nonzero(pure) >= ENOUGH else steady)
    if not len(kept):
        rule = "must have lines of steps in which requests run, without a prompt since the line before (SGLang)"
        raise TraceError(f"{path}: {rule}, got none; log some minutes of load")
    counts = {
        **left_out,
        "in which the number of running requests changed": len(rows) - int(steady.sum()),
        "with prompts, as enough are without": int(steady.sum()) - len(kept),
    }
    mean = (before + running)[kept] / 2
    return StepLog(
        Place(path, numbers[kept].astype(np.int64), word),
        mean,
        kv_tokens[kept],
        kv_frac[kept],
        prompts[kept] / output[kept],
        {"tpot_s": mean / output[kept]},
        {reason: n for reason, n in counts.items() if n},
    )
