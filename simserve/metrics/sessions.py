"""Sessions: conversations and tasks with requests that wait for earlier answers, and clients that retry."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.answers.struct import Figures
from simserve.metrics.stats import NO_SAMPLE, LatencyJson, distribution
from simserve.metrics.summary_schema import Count, Measured
from simserve.metrics.window import Window
from simserve.tables.columns import Columns, Flags, Floats, Ints
from simserve.tables.pieces import pieces


class RetryFactsJson(Figures):
    """Attempts of requests."""

    requests: Count = 0
    """Requests."""
    attempts: Count = 0
    """Attempts."""
    attempts_per_request: Measured = None
    """Mean attempts of a request."""
    retry_frac: Measured = None
    """[share] Attempts that are retries."""
    succeeded: Count = 0
    """Requests that were finally answered."""
    succeeded_frac: Measured = None
    """[share] Requests that were finally answered."""
    slo_met_frac: Measured = None
    """[share] Requests with an attempt that met the SLO; null without one."""
    e2e_s: LatencyJson = NO_SAMPLE
    """[s] Time from the first attempt to the last token, of the answered requests."""


class WastedJson(Figures):
    """Work for requests without an answer."""

    tokens: Count = 0
    """[tokens] Sum of `wasted_tokens`."""
    frac: Measured = None
    """[share] Wasted tokens, of all tokens that steps computed."""


class SessionsJson(Figures):
    """Sessions that began in the window."""

    n: Count
    """Sessions."""
    finished: Count = 0
    """Sessions of which all planned requests finished, at any attempt."""
    refused: Count = 0
    """Sessions in which the last attempt of a request was refused, timed out or failed."""
    cut: Count = 0
    """Sessions that the end of the load or of the run cut off."""
    requests_mean: Measured = None
    """Mean requests of a finished session."""
    per_s: Measured = None
    """[/s] Finished sessions per second of the window."""
    e2e_s: LatencyJson = NO_SAMPLE
    """[s] First request to last answer, of finished sessions."""
    in_flight_s: LatencyJson = NO_SAMPLE
    """[s] The part of `e2e_s` with a request in flight."""


def sessions(requests: Columns, window: Window) -> SessionsJson | None:
    """Return the sessions with their first request in the window; None where no request waits for another's answer.

    requests: rows in order of arrival. A session is finished when all its planned requests are, at any attempt, and
    refused when the last attempt of one of them was refused, timed out or failed.
    """
    if requests["session_requests"] is None or requests["session_id"] is None or not len(requests["arrival_s"]):
        return None
    rows = np.flatnonzero(requests["session_id"] != "")  # recorded requests may have none
    names, first, session = np.unique(requests["session_id"][rows], return_index=True, return_inverse=True)
    status = requests["status"]
    is_finished = status.is_("finished")[rows]
    is_refused = (status.is_("rejected") | status.is_("timed_out") | status.is_("failed"))[rows]
    is_refused &= _is_last(requests["request_id"][rows])
    n_finished = np.bincount(session[is_finished], minlength=len(names))
    began = window.has[rows][first]
    n_requests = requests["session_requests"][rows][first]
    finished = began & (n_finished == n_requests)
    refused = began & (np.bincount(session[is_refused], minlength=len(names)) > 0)
    arrival_s, end_s = requests["arrival_s"][rows], requests["finish_s"][rows]
    end_s = np.where(is_finished, end_s, np.fmax(arrival_s, requests["gave_up_s"][rows]))  # a refusal takes no time
    of_finished = finished[session]
    e2e_s, in_flight_s = _times(session[of_finished], arrival_s[of_finished], end_s[of_finished])
    n = int(finished.sum())
    return SessionsJson(
        n=int(began.sum()),
        finished=n,
        refused=int(refused.sum()),
        cut=int((began & ~finished & ~refused).sum()),
        requests_mean=float(n_requests[finished].mean()) if n else None,
        per_s=n / window.duration_s,
        e2e_s=distribution(e2e_s).figures(),
        in_flight_s=distribution(in_flight_s).figures(),
    )


def _is_last(request_id: NDArray[Any]) -> Flags:
    """Return the mask of each request's last attempt, `(n_rows,)`; rows in order of arrival."""
    is_last = np.zeros(len(request_id), np.bool_)
    is_last[len(request_id) - 1 - np.unique(request_id[::-1], return_index=True)[1]] = True
    return is_last


def _times(session: Ints, arrival_s: Floats, finish_s: Floats) -> tuple[Floats, Floats]:
    """Return the time from a session's first arrival to its last answer, and the time with a request in flight,
    `(n_sessions,)` each; rows in order of arrival."""
    n = len(session)
    order = np.argsort(session, kind="stable")
    session, arrival_s, finish_s = session[order], arrival_s[order], finish_s[order]
    by_finish = np.argsort(finish_s, kind="stable")
    rank = np.empty(n, np.int64)
    rank[by_finish] = np.arange(n)
    # The latest finish of a session so far: a running maximum of whole numbers that increase from session to session.
    latest_s = finish_s[by_finish[np.maximum.accumulate(session * n + rank) % n]]
    is_first = np.append(True, np.diff(session) > 0)[:n]
    is_last = np.append(is_first[1:], True)[:n]
    idle_s = np.zeros(n)
    idle_s[1:] = np.where(is_first[1:], 0.0, np.maximum(arrival_s[1:] - latest_s[:-1], 0.0))
    e2e_s = latest_s[is_last] - arrival_s[is_first]
    return e2e_s, e2e_s - np.bincount(np.cumsum(is_first) - 1, idle_s, len(e2e_s))


def retries(requests: Columns, window: Window) -> RetryFactsJson:
    """Return the outcomes of requests with a first attempt in the window; latencies count from the first attempt. At
    most one attempt of a request finishes, as clients retry only without an answer."""
    first_sent_s = requests["first_sent_s"]
    is_first = window.has & (requests["attempt"] == 1)
    mine = is_first | ((requests["attempt"] > 1) & (first_sent_s >= window.start_s) & (first_sent_s <= window.end_s))
    met = requests["slo_met"]
    finished = mine & requests["status"].is_("finished")
    n, n_attempts, n_finished = (int(np.count_nonzero(which)) for which in (is_first, mine, finished))
    return RetryFactsJson(
        requests=n,
        attempts=n_attempts,
        attempts_per_request=n_attempts / n if n else None,
        retry_frac=1 - n / n_attempts if n_attempts else None,
        succeeded=n_finished,
        succeeded_frac=n_finished / n if n else None,
        slo_met_frac=float(np.count_nonzero(mine & met) / n) if n and met is not None else None,
        e2e_s=LatencyJson(**distribution((requests["finish_s"] - first_sent_s)[finished]).numbers),
    )


def wasted(requests: Columns, steps: Columns) -> WastedJson:
    """Return the tokens computed in vain in the whole run, and their share of all computed tokens."""
    n_tokens = int(requests["wasted_tokens"].sum())
    n_all = 0
    for part in pieces(steps):
        decoded = part["decode_requests"].astype(np.int64) * part["n_steps"]
        n_all += int(part["prefill_tokens"].sum() + decoded.sum() + part["accepted_tokens"].sum())
    return WastedJson(tokens=n_tokens, frac=n_tokens / n_all if n_all else 0.0)
