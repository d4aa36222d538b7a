"""Size of a load: how many requests it brings, before any is drawn, and whether a run of so many is possible."""

import os
from pathlib import Path
from typing import Any

from simserve import plugins
from simserve.errors import TooManyArrivals
from simserve.units import GIB
from simserve.workload.arrivals.base import Arrivals

MOST_REQUESTS = 10**8
"""Limit on the requests of a run."""

BYTES_PER_REQUEST = 300
"""Memory of a request in a run (docs/speed.md); those of sessions and shared prefixes take most."""

S_PER_REQUEST = 25e-6
"""Time of a request in a run (docs/speed.md: 20 to 30 us)."""


def expected_requests(workload: Any) -> float | None:
    """Return the requests that a resolved workload brings by count or by rate; None where only a run can tell."""
    n_batch = 0
    if workload.batch is not None:
        at_s = workload.batch.at_s
        n_batch = workload.batch.n_requests * (len(at_s) if isinstance(at_s, tuple | list) else 1)
    if workload.n_requests is not None:
        return float(workload.n_requests + n_batch)
    if workload.client is not None:
        return float(workload.client["concurrency"] + n_batch)
    if workload.arrivals is None:
        return None
    expected = expected_arrivals(plugins.build("workload.arrivals", workload.arrivals), workload.duration_s)
    return None if expected is None else expected + n_batch


def expected_arrivals(process: Arrivals, duration_s: float) -> float | None:
    """Return the mean number of arrivals in a time; None where the process cannot tell."""
    try:
        expected = process.expected(0.0, duration_s)
    except Exception:  # a user's own class may raise anything; drawing reports it
        return None
    return float(expected) if isinstance(expected, int | float) else None


def check_size(n_requests: float | None, of: str) -> None:
    """Raise TooManyArrivals, which begins with `of`, where this machine cannot run so many requests."""
    wrong = None if n_requests is None else why_too_many(n_requests, free_memory_bytes())
    if wrong is not None:
        rule, value, remedy = wrong
        raise TooManyArrivals(f"{of}: {rule}, got {value}; {remedy}")


def why_too_many(n_requests: float, free_bytes: int | None = None) -> tuple[str, str, str] | None:
    """Return rule, value and remedy where a run of so many requests is not possible in that much memory, or on any
    machine; else None."""
    most = MOST_REQUESTS if free_bytes is None else min(MOST_REQUESTS, free_bytes // BYTES_PER_REQUEST)
    if n_requests <= most:
        return None
    rule = f"a run may have at most {MOST_REQUESTS:,} requests"
    if most < MOST_REQUESTS and free_bytes is not None:
        rule = f"the {free_bytes / GIB:.3g} GiB of free memory hold a run of about {most:,} requests"
    hours = n_requests * S_PER_REQUEST / 3600
    needs = f"about {n_requests * BYTES_PER_REQUEST / GIB:,.4g} GiB and {hours:,.3g} h"
    return rule, f"{n_requests:,.10g}, which take {needs}", "shorten the load or lower its rate"


def free_memory_bytes() -> int | None:
    """Return the memory that this process may still take, swap left out; None where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return int(text.split("MemAvailable:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):  # not Linux: all memory there is
        pages = os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in os.sysconf_names else -1
        return pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else None
