"""Load of a twin: what logs say about the requests of a server, as the workload of a scenario."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simserve.lab.log_errors import ReplayedLog
from simserve.metrics.answers.twin import TwinLoad
from simserve.tables.columns import Flags
from simserve.workload.readers.logs import read_log
from simserve.workload.readers.logs.base import Log
from simserve.workload.readers.logs.bench import DETAILED, BenchSummary, WithoutRequests, read_summary
from simserve.workload.readers.logs.glossary import LogReading

LOAD_FILE = "load.csv"
"""The requests of a log in our own format, beside the scenario."""

ASSUMED: Mapping[str, Any] = {
    "arrivals": {"kind": "poisson", "rate_per_s": 4.0},
    "lengths": {"kind": "profile", "name": "azure-conv-2023"},
    "n_requests": 2000,
}
"""Workload of a server without a log."""


@dataclass(frozen=True)
class LoggedLoad:
    """The workload of a scenario, and the log that it comes from."""

    workload: Mapping[str, Any]
    facts: TwinLoad
    log: Log | None = None
    """Its requests; None where no log has any."""
    logs: Sequence[Path] = ()
    """Logs with requests and their latencies, to which constants can be fitted."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Their columns by ours, where names do not tell."""
    models: Mapping[Path, str | None] = field(default_factory=dict)
    """The model that each log names; None where it names none."""
    warnings: Sequence[str] = ()


def load_of(paths: Sequence[Path], columns: Mapping[str, str]) -> LoggedLoad:
    """Return the load of the busiest log, without any an assumed one. Raises TraceError."""
    logs, summaries = dict[Path, Log](), dict[Path, BenchSummary]()
    for path in paths:
        try:
            logs[path] = read_log(path, reading=LogReading(columns, compares=False))
        except WithoutRequests:
            summaries[path] = read_summary(path)
    without = [f"{path} has no requests, only means; run the benchmark with {DETAILED}" for path in summaries]
    models = {path: log.model for path, log in logs.items()} | {path: each.model for path, each in summaries.items()}
    if not logs:
        busiest = max(summaries, key=lambda path: summaries[path].rate_per_s, default=None)
        if busiest is None:
            return LoggedLoad(ASSUMED, TwinLoad(kind="assumed", n_requests=2000, rate_per_s=4.0))
        return LoggedLoad(*_of_summary(busiest.name, summaries[busiest]), models=models, warnings=without)
    busiest = max(logs, key=lambda path: _rate(logs[path]))
    log, n = logs[busiest], len(logs[busiest])
    means: dict[str, Any] = {
        "mean_prompt_tokens": float(log.trace.prompt_tokens.mean()),
        "mean_output_tokens": float(log.trace.output_tokens.mean()),
    }
    others = [] if len(logs) == 1 else [f"the load is that of {busiest.name}, the busiest of {len(logs)} logs"]
    if log.n_clients is None:
        workload: Mapping[str, Any] = {"trace": {"path": LOAD_FILE}}
        facts = TwinLoad(kind="trace", log=busiest.name, n_requests=n, rate_per_s=_rate(log), **means)
    else:
        client = {"kind": "closed_loop", "concurrency": log.n_clients}
        workload = {"client": client, "lengths": {"kind": "empirical", "path": LOAD_FILE}, "n_requests": n}
        facts = TwinLoad(kind="closed_loop", log=busiest.name, n_requests=n, clients=log.n_clients, **means)
    measured = tuple(path for path, each in logs.items() if each.measured)
    return LoggedLoad(workload, facts, log, measured, columns, models, (*others, *without))


def _of_summary(name: str, summary: BenchSummary) -> tuple[Mapping[str, Any], TwinLoad]:
    """Return a workload by rate, or by clients, and mean lengths."""
    n, means = summary.n_requests, (max(1, round(summary.prompt_tokens)), max(1, round(summary.output_tokens)))
    lengths = {"kind": "fixed", "prompt_tokens": means[0], "output_tokens": means[1]}
    facts = TwinLoad(
        kind="rate",
        log=name,
        n_requests=n,
        rate_per_s=summary.rate_per_s if summary.n_clients is None else None,
        clients=summary.n_clients,
        mean_prompt_tokens=summary.prompt_tokens,
        mean_output_tokens=summary.output_tokens,
    )
    if summary.n_clients is None:
        sent: dict[str, Any] = {"arrivals": {"kind": "poisson", "rate_per_s": summary.rate_per_s}}
    else:
        sent = {"client": {"kind": "closed_loop", "concurrency": summary.n_clients}}
    return {**sent, "lengths": lengths, "n_requests": n}, facts


def _rate(log: Log) -> float:
    """Return the requests per second of a log, over the time that it took where no arrivals say it."""
    span_s = float(log.trace.arrival_s.max(initial=0.0)) or log.duration_s or 0.0
    return len(log) / span_s if span_s > 0 else 0.0


def met_frac(replay: ReplayedLog, slo: Mapping[str, float], *, predicted: bool) -> float | None:
    """Return the share of a log's requests that met every goal, as measured or as predicted; None where the log lacks a
    latency. Failed requests have missed."""
    log = replay.log
    if not slo or not set(slo) <= set(log.measured):
        return None
    sides: Mapping[str, Any] = replay.predicted if predicted else log.measured
    met: Flags = replay.is_answered.copy()
    for name, limit_s in slo.items():
        latencies = sides[name]
        met &= (latencies <= limit_s) | ((latencies != latencies) & (name == "tpot_s"))  # one token has no TPOT
    return float(met.sum()) / (len(log) + log.n_failed)
