"""Trace: chosen requests of a run and the replicas that served them, as a file for Perfetto or chrome://tracing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simserve.errors import OutputError
from simserve.metrics.decode_rows import decode_rows
from simserve.metrics.itl import span_ends
from simserve.report.formats import plural
from simserve.report.trace import tracks
from simserve.report.trace.events import Events, TraceTrack

if TYPE_CHECKING:
    from simserve.metrics.results import Results

MOST_ROWS = 40_000
"""Limit of step rows in a trace: a file of 20 MB, which both viewers open in seconds."""

ROW = (
    *("arrival_s", "scheduled_s", "finish_s", "gave_up_s", "front_end_s", "prefill_s", "prefill_wait_s"),
    *("transfer_s", "transfer_wait_s", "link_s", "decode_s", "interference_s", "preempted_s", "recompute_s"),
    *("n_preemptions", "n_swaps", "n_migrations", "n_recomputed_tokens"),
    *("prompt_tokens", "cached_tokens", "output_tokens", "ttft_s", "tpot_s", "e2e_s"),
)
"""Columns of a request that its track shows."""


@dataclass(frozen=True)
class Chosen:
    """The requests to draw: the slowest by TTFT and by E2E, this many of each; or those with these ids."""

    slowest: int = 20
    ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class DrawnTrace:
    """A trace as text, and a note on omitted steps, if any."""

    text: str
    cut: str | None


def trace(results: "Results", chosen: Chosen) -> DrawnTrace:
    """Return the trace of chosen requests and their replicas; raise OutputError for missing steps or requests.

    One track per request has its phases. One track per replica has its counters and its steps while it had any of these
    requests. Arrows lead from a request to the step that began its prompt, and to its first decode step elsewhere.
    """
    if "steps" not in results.columns:
        raise OutputError("--timeline: steps and spans are not in this folder; run again without --steps none")
    requests, steps, spans = (results.columns[name] for name in ("requests", "steps", "spans"))
    rows = _rows_of(requests, chosen)
    lives = _lives(results, rows, _spans_of(steps, spans, rows))
    kept, n_left_out = _steps_of(steps, lives)
    events, pools = Events(), results.facts.replica_pool
    for replica in np.unique(steps["replica"][kept]).tolist():
        name = f"Replica {replica} ({results.facts.pools[pools[replica]].name})"
        tracks.add_replica(events, steps, kept[steps["replica"][kept] == replica], name)
    starts = set(zip(steps["replica"][kept].tolist(), steps["start_s"][kept].tolist(), strict=True))
    events.name_process(tracks.REQUESTS, "Requests")
    for number, life in enumerate(lives, start=1):
        _add_request(events, TraceTrack(tracks.REQUESTS, number), life, starts)
    cut = None
    if n_left_out:
        where = plural(n_left_out, "request")
        cut = f"the trace lacks steps around {where}, to keep {MOST_ROWS:,} rows; choose fewer by --timeline-requests"
    facts = {"scenario": results.facts.name, "seed": results.facts.seed, "requests": len(lives), "cut": cut}
    return DrawnTrace(events.as_json(facts), cut)


def _rows_of(requests: tracks.ColumnsByName, chosen: Chosen) -> list[int]:
    """Return the rows of the chosen requests, the slowest by TTFT first."""
    if chosen.ids:
        place = {str(each): row for row, each in reversed(list(enumerate(requests["request_id"].tolist())))}
        unknown = [each for each in chosen.ids if each not in place]
        if unknown:
            known = (
                f"ids go from {requests['request_id'][0]} to {requests['request_id'][-1]}" if place else "it has none"
            )
            raise OutputError(f"--timeline-requests: must name requests of the run ({known}), got {unknown[0]}")
        return list(dict.fromkeys(place[each] for each in chosen.ids))
    counted = np.flatnonzero(requests["in_window"] & requests["status"].is_("finished"))
    result: list[int] = []
    for name in ("ttft_s", "e2e_s"):
        order = counted[np.argsort(-requests[name][counted], kind="stable")]
        result += order[: chosen.slowest].tolist()
    return list(dict.fromkeys(result))


def _spans_of(
    steps: tracks.ColumnsByName, spans: tracks.ColumnsByName, rows: Sequence[int]
) -> dict[int, list[tracks.Span]]:
    """Return the spans of the chosen requests, in order of time."""
    decoding = decode_rows(steps, spans)
    places = np.flatnonzero(np.isin(spans["request_id"], rows))
    ends_s = span_ends(decoding, decoding.by_span(spans))
    result: dict[int, list[tracks.Span]] = {row: [] for row in rows}
    for place in places[np.argsort(spans["join_s"][places], kind="stable")].tolist():
        n_steps = int(spans["last_step"][place] - spans["first_step"][place]) + 1
        first_s = float(decoding.start_s[decoding.span_first[place]]) if n_steps else None
        replica, join_s = int(spans["replica"][place]), float(spans["join_s"][place])
        span = tracks.Span(replica, join_s, float(ends_s[place]), n_steps, first_s)
        result[int(spans["request_id"][place])].append(span)
    return result


def _lives(results: "Results", rows: Sequence[int], spans: Mapping[int, list[tracks.Span]]) -> list[tracks.Life]:
    requests, steps, facts = results.columns["requests"], results.columns["steps"], results.facts
    reasons = tracks.words(steps["blocked_by"])
    pushes = facts.link is not None and facts.link.how == "push"
    is_prefill = [facts.pools[pool].role == "prefill" for pool in facts.replica_pool]
    lives = []
    for row in rows:
        values = {name: requests[name][row].item() for name in ROW}
        values |= {"request_id": str(requests["request_id"][row]), "status": tracks.words(requests["status"], [row])[0]}
        moved, own = int(requests["prefill_replica"][row]), int(requests["replica"][row])
        values["computed_at"] = moved if moved >= 0 else own

        def queue(from_s: float, end_s: float, replica: int = values["computed_at"]) -> list[tuple[str, float, float]]:
            return _kept_out(steps, reasons, replica, (from_s, end_s))

        is_pushed = pushes and values["computed_at"] >= 0 and is_prefill[values["computed_at"]]
        lives.append(tracks.Life(values, spans[row], queue, facts.respond_s, is_pushed))
    return lives


def _kept_out(
    steps: tracks.ColumnsByName, reasons: Sequence[str], replica: int, ends_s: tuple[float, float]
) -> list[tuple[str, float, float]]:
    """Return the reasons that blocked the head of a queue: those of its steps, and its turn in between."""
    from_s, until_s = ends_s
    result: list[tuple[str, float, float]] = []
    for row in tracks.overlapping(steps, replica, ends_s).tolist():
        start_s, end_s = max(float(steps["start_s"][row]), from_s), min(float(steps["end_s"][row]), until_s)
        reason = reasons[row] or "turn"
        last_s = result[-1][2] if result else from_s
        if start_s > last_s:
            result.append(("turn", last_s, start_s))
        if result and result[-1][0] == reason:
            result[-1] = (reason, result[-1][1], end_s)
        else:
            result.append((reason, start_s, end_s))
    last_s = result[-1][2] if result else from_s
    return [*result, ("turn", last_s, until_s)]


def _steps_of(steps: tracks.ColumnsByName, lives: Sequence[tracks.Life]) -> tuple[tracks.Ints, int]:
    """Return the rows in which replicas had any of these requests, and the number of requests left without."""
    kept, n_left_out = np.zeros(len(steps["replica"]), np.bool_), 0
    for life in lives:
        requested = kept.copy()
        for replica in {life.row["computed_at"], *(span.replica for span in life.spans)} - {-1}:
            requested[tracks.overlapping(steps, replica, life.ends_s)] = True
        if np.count_nonzero(requested) > MOST_ROWS:
            n_left_out += 1
        else:
            kept = requested
    return np.flatnonzero(kept), n_left_out


def _add_request(events: Events, track: TraceTrack, life: tracks.Life, starts: set[tuple[int, float]]) -> None:
    row = life.row
    name = f"Request {row['request_id']}"
    events.name_thread(track, name)
    sentence = ("status", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s", "e2e_s", "n_preemptions")
    args = {each: row[each] if row[each] == row[each] else None for each in sentence}
    events.slice(track, name, life.ends_s, args)
    for piece in tracks.pieces(life):
        events.slice(track, piece.name, (piece.start_s, piece.end_s), piece.args)
    steps = [("prefill", row["computed_at"], row["scheduled_s"])]
    steps += [("decode", span.replica, span.first_s) for span in life.spans if span.replica != row["computed_at"]][:1]
    for step, replica, start_s in steps:
        if (replica, start_s) in starts:
            events.arrow(step, start_s, track, tracks.track_of(replica))
