"""Time split: the parts of each request's time, which sum to e2e_s. Exact."""

from dataclasses import dataclass

import numpy as np

from simserve.metrics.decode_rows import DecodeRows
from simserve.metrics.integrals import Waits, kept_out_ps
from simserve.metrics.itl import span_ends
from simserve.tables.columns import Columns, Flags, Ints, bounds
from simserve.tables.facts import RunFacts
from simserve.tables.pieces import Derived, Rows, column, computed, cumulated, full, pieces, rows_where
from simserve.tables.run_tables import ExtraColumns, RunTables, prefilled_at
from simserve.tables.schema import SPLIT
from simserve.units import array_to_ps, array_to_s, to_ps

QUEUE = SPLIT[SPLIT.index("queue_seats_s") : SPLIT.index("queue_turn_s") + 1]
"""Parts of the wait in a queue: by each of REASONS, and the rest."""

_LOST = SPLIT.index("recompute_s")
PARTS = (SPLIT[0], "transfer_wait_s", *SPLIT[1:_LOST], "preempted_s", *SPLIT[_LOST:])
"""Columns of requests that sum to e2e_s, in chronological order; REQUESTS defines each."""

SCHEDULED, JOINED, LEFT, BACK, SWAPPED_BACK, ENDED = range(6)
"""Events of a request; between them it prefills, decodes, waits, recomputes and decodes."""


@dataclass(frozen=True)
class _Phases:
    """The phases of preempted requests, `(n_found,)` each."""

    request: Ints
    """Their row numbers, ascending."""
    prefill_ps: Ints
    """Time until the first token, or until the first preemption."""
    was_cut: Flags
    """Whether the first preemption came before the first token."""
    recompute_ps: Ints
    """Running time after a preemption, until the next token or preemption."""
    swapped_spans: Ints
    """Spans that continue a swapped one; their first token came from the step before; `(n_spans,)`."""


def split_columns(tables: RunTables, rows: DecodeRows, facts: RunFacts) -> Columns:
    """Return the columns of SPLIT, `(n_requests,)` each, NaN for unfinished requests. Tables read from files keep their
    columns: files lack the input of the split."""
    requests, extra = tables.requests, tables.extra
    if extra is None:
        nothing = np.full(len(requests["arrival_s"]), np.nan)
        return {name: requests.get(name, nothing) for name in SPLIT}
    lives = _lives(tables, extra, rows, facts)
    paused = _phases(extra.pauses, tables.spans, lives)
    start_ps = column(lambda part: array_to_ps(part["start_s"]), {"start_s": tables.steps["start_s"]})
    parts = _prefills(tables.steps, start_ps, lives, paused) | _queue(tables.steps, start_ps, extra, lives)
    parts |= lives | _decoded(tables, rows, paused.swapped_spans)
    respond_ps = to_ps(facts.respond_s)

    def formula(part: Rows) -> Derived:
        prefill_ps, end_ps = part["prefill_ps"], part["end_ps"]
        decode_ps = end_ps - part["scheduled_ps"] - prefill_ps - part["preempted_ps"] - part["recompute_ps"]
        split_ps = {
            "front_end_s": part["routed_ps"] - part["arrival_ps"] + respond_ps,
            **{name: part[name] for name in QUEUE},
            "prefill_s": part["own_ps"],
            "prefill_wait_s": prefill_ps - part["own_ps"],
            "link_s": part["link_ps"],
            "decode_s": part["alone_ps"],
            "interference_s": decode_ps - part["transfer_ps"] - part["alone_ps"] - part["copies_ps"],
            "copy_s": part["copies_ps"],
            "recompute_s": part["recompute_ps"],
            "batch_wait_s": part["finish_ps"] - respond_ps - end_ps,
        }
        return {name: np.where(part["has_finished"], array_to_s(own), np.nan) for name, own in split_ps.items()}

    return computed(formula, parts)


def _lives(tables: RunTables, extra: ExtraColumns, rows: DecodeRows, facts: RunFacts) -> Rows:
    """Return timestamps and durations of each request, in picoseconds, undefined for unfinished ones: among them
    computed_at, the replica that first computed its prompt; queued_ps, when its wait there began, with push after the
    decode replica has granted room; joined_ps, the end of its first prefill; end_ps, the time of its last token."""
    requests, spans = tables.requests, tables.spans
    n, pushes = len(requests["arrival_s"]), facts.link is not None and facts.link.how == "push"
    joined_ps, end_ps = (full(n, value, requests) for value in (np.iinfo(np.int64).max, 0))
    for part in pieces(rows.by_span(spans)):
        np.minimum.at(joined_ps, part["request_id"], array_to_ps(part["join_s"]))
        np.maximum.at(end_ps, part["request_id"], array_to_ps(span_ends(rows, part)))

    def formula(part: Rows) -> Derived:
        has_finished = part["status"].is_("finished")

        def known_ps(name: str) -> Ints:
            return array_to_ps(np.where(has_finished, part[name], 0.0))

        routed_ps, room_ps, transfer_ps = map(known_ps, ("routed_s", "transfer_wait_s", "transfer_s"))
        notice_ps = known_ps("notice_s") if pushes else 0
        return {
            "has_finished": has_finished,
            "computed_at": prefilled_at(part),
            "arrival_ps": known_ps("arrival_s"),
            "routed_ps": routed_ps,
            "queued_ps": routed_ps + room_ps + notice_ps if pushes else routed_ps,
            "scheduled_ps": known_ps("scheduled_s"),
            "joined_ps": np.where(has_finished, part["joined_ps"], 0),
            "finish_ps": known_ps("finish_s"),
            "preempted_ps": known_ps("preempted_s"),
            "transfer_ps": transfer_ps,
            "link_ps": transfer_ps + notice_ps if pushes else transfer_ps - room_ps,
            "chunks_ps": array_to_ps(part["chunks_s"]),
        }

    own = {name: getattr(extra, name) for name in ("routed_s", "notice_s", "chunks_s")}
    return Rows(computed(formula, requests | own | {"joined_ps": joined_ps}), end_ps=end_ps)


def _decoded(tables: RunTables, rows: DecodeRows, swapped_spans: Ints) -> Derived:
    """Return the decode time of each request without prefill interference, and its waits for copies."""
    spans, steps, n = tables.spans, tables.steps, len(tables.requests["arrival_s"])

    def copies_ps(part: Rows) -> Ints:
        return array_to_ps(steps["copy_s"][part["place"]])

    def alone_ps(part: Rows) -> Ints:
        lasts_ps = array_to_ps(part["end_s"]) - array_to_ps(part["start_s"])
        return lasts_ps - array_to_ps(steps["interference_s"][part["place"]]) - copies_ps(part)

    by_span, result = rows.by_span(spans), {}
    for name, amounts_ps in (("alone_ps", alone_ps), ("copies_ps", copies_ps)):
        upto_ps, total_ps = cumulated(amounts_ps, rows.by_row), full(n, 0, tables.requests)
        for part in pieces(by_span):
            decoded_ps = _upto(upto_ps, part["last"]) - _upto(upto_ps, part["first"] - 1)
            np.add.at(total_ps, part["request_id"], decoded_ps)
        before = rows.span_first[swapped_spans] - 1  # the row of the span's first token, which came from a decode step
        more_ps = _upto(upto_ps, before) - _upto(upto_ps, before - 1)
        np.add.at(total_ps, spans["request_id"][swapped_spans], more_ps)
        result[name] = total_ps
    return result


def _upto(sums: Ints, row: Ints) -> Ints:
    """Return the sums up to and with rows; 0 before the first."""
    return np.where(row >= 0, sums[row], 0) if len(sums) else np.zeros(len(row), np.int64)


def _queue(steps: Columns, start_ps: Ints, extra: ExtraColumns, lives: Rows) -> Derived:
    """Split the queueing time by the cause that blocked the head of the queue; the rest is the step in flight."""

    def until_ps(part: Rows) -> Ints:
        return np.asarray(np.where(part["has_finished"], part["scheduled_ps"], part["queued_ps"]), np.int64)

    waits = Waits(lives["computed_at"], lives["queued_ps"], column(until_ps, lives))
    kept_ps = dict(zip(QUEUE[:-1], kept_out_ps(steps, start_ps, extra.stalls, waits), strict=True))

    def rest_ps(part: Rows) -> Ints:
        rest: Ints = part["until_ps"] - part["from_ps"] - sum(part[name] for name in kept_ps)
        return rest

    return kept_ps | {QUEUE[-1]: column(rest_ps, vars(waits) | kept_ps)}


def _phases(pauses: Columns, spans: Columns, lives: Rows) -> _Phases:
    """Return the phases of requests that finished after a preemption. lives: has_finished, scheduled_ps and end_ps,
    `(n_requests,)` each; instants of unfinished requests are not read."""
    has_finished, scheduled_ps, end_ps = (lives[name] for name in ("has_finished", "scheduled_ps", "end_ps"))
    had_to_go = pauses["request_id"]
    request = np.unique(had_to_go[has_finished[had_to_go]])
    is_one = np.zeros(len(has_finished), np.bool_)
    is_one[request] = True
    own_spans, own_pauses = (rows_where(lambda part: is_one[part["request_id"]], each) for each in (spans, pauses))
    left, back = (array_to_ps(pauses[name][own_pauses]) for name in ("left_s", "back_s"))
    is_swapped = pauses["is_swapped"][own_pauses]
    n, n_spans, n_pauses = len(request), len(own_spans), len(own_pauses)
    kind = np.concatenate([
        np.full(n, SCHEDULED), np.full(n_spans, JOINED), np.full(n_pauses, LEFT),
        np.where(is_swapped, SWAPPED_BACK, BACK), np.full(n, ENDED),
    ])  # fmt: skip
    owner = np.concatenate([
        request, spans["request_id"][own_spans], had_to_go[own_pauses], had_to_go[own_pauses], request
    ])  # fmt: skip
    at_ps = np.concatenate([
        scheduled_ps[request], array_to_ps(spans["join_s"][own_spans]), left, back, end_ps[request]
    ])  # fmt: skip
    # At one instant a step ends first, then requests leave and may return, even several times; the sort is stable.
    number = np.arange(n_pauses)
    rank = np.concatenate([np.zeros(n + n_spans, np.int64), number, number, np.full(n, n_pauses)])
    order = np.lexsort((rank, at_ps, owner))
    kind, owner, at_ps = kind[order], np.searchsorted(request, owner[order]), at_ps[order]
    goes_on = owner[1:] == owner[:-1]
    lasts_ps = np.where(goes_on, at_ps[1:] - at_ps[:-1], 0)

    def total_ps(of: int) -> Ints:
        chosen = np.flatnonzero(kind[:-1] == of)
        sums = np.zeros(n, np.int64)
        np.add.at(sums, owner[chosen], lasts_ps[chosen])
        return sums

    follows = np.flatnonzero(goes_on)
    was_cut = np.zeros(n, np.bool_)
    was_cut[owner[follows[(kind[follows] == SCHEDULED) & (kind[follows + 1] == LEFT)]]] = True
    returned = order[follows[(kind[follows] == SWAPPED_BACK) & (kind[follows + 1] == JOINED)] + 1]
    return _Phases(request, total_ps(SCHEDULED), was_cut, total_ps(BACK), own_spans[returned - n])


def _prefills(steps: Columns, start_ps: Ints, lives: Rows, paused: _Phases) -> Derived:
    """Return the duration of the first prefill, of its steps that computed part of it, and of recomputation. A prompt
    without partial chunks is computed in one step."""
    prefill_ps = column(lambda part: part["joined_ps"] - part["scheduled_ps"], lives)
    recompute_ps = full(len(prefill_ps), 0, lives)
    prefill_ps[paused.request], recompute_ps[paused.request] = paused.prefill_ps, paused.recompute_ps
    own_ps = column(lambda part: part["prefill_ps"].copy(), {"prefill_ps": prefill_ps})
    chunks_ps, is_cut = lives["chunks_ps"], np.zeros(len(prefill_ps), np.bool_)
    cut = paused.request[paused.was_cut]
    own_ps[cut], is_cut[cut] = chunks_ps[cut], True
    several = rows_where(
        lambda part: part["has_finished"] & (part["chunks_ps"] != 0) & ~part["is_cut"], lives | {"is_cut": is_cut}
    )
    for part in pieces({"request": several}, run=lives):
        request = part["request"]
        last_ps = _last_chunks_ps(steps, start_ps, lives["computed_at"][request], lives["joined_ps"][request])
        own_ps[request] = chunks_ps[request] + last_ps
    return {"prefill_ps": prefill_ps, "own_ps": own_ps, "recompute_ps": recompute_ps}


def _last_chunks_ps(steps: Columns, start_ps: Ints, replica: Ints, joined_ps: Ints) -> Ints:
    """Return the duration of the steps that end at those instants on those replicas, `(n,)`."""
    lasts_ps = np.zeros(len(replica), np.int64)
    edges = bounds(steps["replica"], int(replica.max(initial=-1)) + 1)
    for each in np.unique(replica).tolist():
        mine, rows = replica == each, slice(*edges[each : each + 2])
        starts_ps, end_ps = start_ps[rows], joined_ps[mine]
        lasts_ps[mine] = end_ps - starts_ps[np.searchsorted(starts_ps, end_ps) - 1]
    return lasts_ps
