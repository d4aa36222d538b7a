"""Log: requests and latencies of a server, whatever the file format, and checks that all formats share."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from simserve.tables.columns import Floats
from simserve.workload.readers.base import Place, checked, refuse_rows
from simserve.workload.trace import Trace

METRICS = ("ttft_s", "tpot_s", "e2e_s")
"""Latencies that a log may have for each request."""

Arrivals = Literal["measured", "closed_loop", "at_once", "drawn"]
"""Origin of the send times of a replay."""

ROUNDING_FRAC = 1e-3
"""Tolerance of TTFT above the E2E of a one-token answer, as logs round the two separately."""


@dataclass(frozen=True)
class Log:
    """Requests in send order; row i of every column is request i."""

    place: Place
    """Place of each row in the file."""
    trace: Trace
    measured: Mapping[str, Floats]
    """Measured latencies by METRICS, `(n_requests,)`; NaN where missing or unfinished."""
    arrivals: Arrivals = "measured"
    concurrency: int | None = None
    """Clients of a closed loop that sends the requests of a replay."""
    n_clients: int | None = None
    """Clients that the load had, each of which waited for its answer; None of an open load."""
    model: str | None = None
    """The model by its name in the log, where it has one."""
    servers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names in columns of what answered: `pod`, and `version` of the engine."""
    duration_s: float | None = None
    """Duration of the whole benchmark, where the file has it."""
    n_failed: int = 0
    """Requests without an answer, which are left out."""
    n_unfinished: int = 0
    """Requests that are sent but not compared, as they did not finish."""
    assumed: tuple[str, ...] = ()
    """Assumptions about missing data, a sentence each."""
    unit: Literal["requests"] = "requests"

    def __len__(self) -> int:
        return len(self.trace)

    @property
    def is_paired(self) -> bool:
        """Whether row i of the log and of its replay are the same request under the same load."""
        return self.arrivals != "drawn"

    @property
    def has_instants(self) -> bool:
        """Whether the send times are known."""
        return self.arrivals in ("measured", "at_once")


def filled_in(place: Place, output_tokens: Floats, given: Mapping[str, Floats]) -> dict[str, Floats]:
    """Complete the latencies from any two: E2E = TTFT + TPOT (output tokens - 1). Raises TraceError where a first token
    comes after the last, or an instant before the one it follows."""
    for name, column in given.items():
        refuse_rows(place, column < 0, f"{name} must not be negative (do the clocks of its instants agree?)", column)
    gaps = output_tokens - 1
    latencies = dict(given)
    if "ttft_s" in given and "e2e_s" in given:
        pairs = list(zip(given["ttft_s"].tolist(), given["e2e_s"].tolist(), strict=True))
        is_late = given["ttft_s"] > given["e2e_s"] * (1 + ROUNDING_FRAC)
        refuse_rows(place, is_late, "TTFT must not be longer than E2E, in seconds", pairs)
    if latencies.keys() == {"ttft_s", "e2e_s"}:
        decode_s = np.maximum(given["e2e_s"] - given["ttft_s"], 0.0)
        latencies["tpot_s"] = np.divide(decode_s, gaps, out=np.full(len(gaps), np.nan), where=gaps > 0)
    elif "tpot_s" in latencies and len(latencies) == 2:
        decode_s = np.where(gaps > 0, given["tpot_s"] * gaps, 0.0)
        if "ttft_s" in latencies:
            latencies["e2e_s"] = given["ttft_s"] + decode_s
        else:
            latencies["ttft_s"] = np.maximum(given["e2e_s"] - decode_s, 0.0)
    return {name: latencies[name] for name in METRICS if name in latencies}


def in_order(log: Log) -> Log:
    """Sort the log by arrivals, which then start at 0. Raises TraceError for rows that cannot be sent."""
    order = np.argsort(log.trace.arrival_s, kind="stable")
    measured = {name: column[order] for name, column in log.measured.items()}
    place = log.place.take(order)
    return replace(log, place=place, trace=checked(place, log.trace.take(order)), measured=measured)
