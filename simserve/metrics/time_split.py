"""Time split: the parts of each request's time, which sum to e2e_s. Exact."""

from dataclasses import dataclass

import numpy as np

from simserve.metrics.decode_rows import DecodeRows
from simserve.metrics.itl import span_ends
from simserve.metrics.kept_out import REASONS, Waits, kept_out_ps
from simserve.metrics.phases import Phases, phases
from simserve.tables.columns import Columns, Flags, Floats, Ints
from simserve.tables.facts import RunFacts
from simserve.tables.run_tables import ExtraColumns, RunTables
from simserve.tables.schema import SPLIT
from simserve.units import array_to_ps, array_to_s, to_ps

_LOST = SPLIT.index("recompute_s")
PARTS = (SPLIT[0], "transfer_wait_s", *SPLIT[1:_LOST], "preempted_s", *SPLIT[_LOST:])
"""Columns of requests that sum to e2e_s, in chronological order; docs/outputs.md defines each."""


def split_columns(tables: RunTables, rows: DecodeRows, facts: RunFacts) -> dict[str, Floats]:
    """Return the columns of SPLIT, `(n_requests,)` each, NaN for unfinished requests.

    Tables read from files keep their columns: files lack the input of the split.
    """
    requests, extra = tables.requests, tables.extra
    if extra is None:
        nothing = np.full(len(requests["arrival_s"]), np.nan)
        return {name: requests.get(name, nothing) for name in SPLIT}
    lives = _lives(tables, extra, rows, facts)
    paused = phases(extra.pauses, tables.spans, lives.scheduled_ps, np.where(lives.has_finished, lives.end_ps, -1))
    alone_ps, copy_ps = _decoded(tables, rows, paused.swapped_spans)
    prefill_ps, own_ps, recompute_ps = _prefills(tables.steps, array_to_ps(extra.chunks_s), lives, paused)
    rest_ps = lives.end_ps - lives.scheduled_ps - prefill_ps - lives.preempted_ps - recompute_ps - lives.transfer_ps
    parts = {
        "front_end_s": lives.routed_ps - lives.arrival_ps + lives.respond_ps,
        **_queue(tables.steps, extra, lives),
        "prefill_s": own_ps,
        "prefill_wait_s": prefill_ps - own_ps,
        "link_s": lives.link_ps,
        "decode_s": alone_ps,
        "interference_s": rest_ps - alone_ps - copy_ps,
        "copy_s": copy_ps,
        "recompute_s": recompute_ps,
        "batch_wait_s": lives.finish_ps - lives.respond_ps - lives.end_ps,
    }
    # one at a time: two copies of all would be the peak memory of the metrics
    return {name: np.where(lives.has_finished, array_to_s(parts.pop(name)), np.nan) for name in tuple(parts)}


@dataclass(frozen=True)
class _Lives:
    """Timestamps of each request, `(n_requests,)` each; undefined for unfinished ones."""

    has_finished: Flags
    computed_at: Ints
    """The replica that first computed its prompt."""
    arrival_ps: Ints
    routed_ps: Ints
    queued_ps: Ints
    """Start of its wait there; with push, after the decode replica has granted room."""
    scheduled_ps: Ints
    joined_ps: Ints
    """Start of the first step of its prefill."""
    end_ps: Ints
    """Time of its last token."""
    finish_ps: Ints
    preempted_ps: Ints
    transfer_ps: Ints
    link_ps: Ints
    respond_ps: int


def _lives(tables: RunTables, extra: ExtraColumns, rows: DecodeRows, facts: RunFacts) -> _Lives:
    requests, spans = tables.requests, tables.spans
    has_finished = requests["status"].is_("finished")

    def known_ps(seconds: Floats) -> Ints:
        return array_to_ps(np.where(has_finished, seconds, 0.0))

    moved, own = requests["prefill_replica"].astype(np.int64), requests["replica"].astype(np.int64)
    computed_at = np.where(moved >= 0, moved, own)
    joined_ps, end_ps = np.full(len(moved), np.iinfo(np.int64).max), np.zeros(len(moved), np.int64)
    np.minimum.at(joined_ps, spans["request_id"], array_to_ps(spans["join_s"]))
    np.maximum.at(end_ps, spans["request_id"], array_to_ps(span_ends(rows, spans)))
    routed_ps, room_ps = known_ps(extra.routed_s), known_ps(requests["transfer_wait_s"])
    transfer_ps = known_ps(requests["transfer_s"])
    queued_ps, link_ps = routed_ps, transfer_ps - room_ps
    if facts.link is not None and facts.link.how == "push":
        notice_ps = known_ps(extra.notice_s)
        queued_ps, link_ps = routed_ps + room_ps + notice_ps, transfer_ps + notice_ps
    return _Lives(
        has_finished,
        computed_at,
        arrival_ps=known_ps(requests["arrival_s"]),
        routed_ps=routed_ps,
        queued_ps=queued_ps,
        scheduled_ps=known_ps(requests["scheduled_s"]),
        joined_ps=np.where(has_finished, joined_ps, 0),
        end_ps=end_ps,
        finish_ps=known_ps(requests["finish_s"]),
        preempted_ps=known_ps(requests["preempted_s"]),
        transfer_ps=transfer_ps,
        link_ps=link_ps,
        respond_ps=to_ps(facts.respond_s),
    )


def _decoded(tables: RunTables, rows: DecodeRows, swapped_spans: Ints) -> tuple[Ints, Ints]:
    """Return the decode time of each request without prefill interference, and its waits for copies."""
    spans, steps = tables.spans, tables.steps
    first = rows.span_first.copy()
    first[swapped_spans] -= 1  # the span's first token came from a decode step
    copies_ps = array_to_ps(steps["copy_s"][rows.places])
    lasts_ps = array_to_ps(rows.end_s) - array_to_ps(rows.start_s)
    alone_ps = lasts_ps - array_to_ps(steps["interference_s"][rows.places]) - copies_ps
    sums = []
    for amounts_ps in (alone_ps, copies_ps):
        total_ps = np.zeros(len(tables.requests["arrival_s"]), np.int64)
        if amounts_ps.any():
            upto_ps = np.append(0, np.cumsum(amounts_ps))
            np.add.at(total_ps, spans["request_id"], upto_ps[rows.span_last + 1] - upto_ps[first])
        sums.append(total_ps)
    return sums[0], sums[1]


def _queue(steps: Columns, extra: ExtraColumns, lives: _Lives) -> dict[str, Ints]:
    """Split the queueing time by the cause that blocked the head of the queue; the rest is the step in flight."""
    queue_ps = np.where(lives.has_finished, lives.scheduled_ps - lives.queued_ps, 0)
    waits = Waits(lives.computed_at, lives.queued_ps, lives.queued_ps + queue_ps)
    kept_ps = kept_out_ps(steps, extra.stalls, waits)
    parts = {f"queue_{reason}_s": kept_ps[place] for place, reason in enumerate(REASONS)}
    return parts | {"queue_turn_s": queue_ps - kept_ps.sum(axis=0)}


def _prefills(steps: Columns, chunks_ps: Ints, lives: _Lives, paused: Phases) -> tuple[Ints, Ints, Ints]:
    """Return the duration of the first prefill, of its steps that computed part of it, and of recomputation.

    A prompt without partial chunks is computed in one step.
    """
    prefill_ps = lives.joined_ps - lives.scheduled_ps
    recompute_ps = np.zeros(len(prefill_ps), np.int64)
    prefill_ps[paused.request], recompute_ps[paused.request] = paused.prefill_ps, paused.recompute_ps
    own_ps = prefill_ps.copy()
    cut = paused.request[paused.was_cut]
    own_ps[cut] = chunks_ps[cut]
    is_whole = chunks_ps == 0
    is_whole[cut] = True
    several = np.flatnonzero(lives.has_finished & ~is_whole)
    last_ps = _last_chunks_ps(steps, lives.computed_at[several], lives.joined_ps[several])
    own_ps[several] = chunks_ps[several] + last_ps
    return prefill_ps, own_ps, recompute_ps


def _last_chunks_ps(steps: Columns, replica: Ints, joined_ps: Ints) -> Ints:
    """Return the duration of the steps that end at those instants on those replicas, `(n,)`."""
    lasts_ps = np.zeros(len(replica), np.int64)
    for each in np.unique(replica).tolist():
        mine, rows = replica == each, slice(*np.searchsorted(steps["replica"], [each, each + 1]))
        start_ps, end_ps = array_to_ps(steps["start_s"][rows]), joined_ps[mine]
        lasts_ps[mine] = end_ps - start_ps[np.searchsorted(start_ps, end_ps) - 1]
    return lasts_ps
