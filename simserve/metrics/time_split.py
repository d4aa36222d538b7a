"""Time split: the parts of each request's time, which sum to e2e_s. Exact."""

from dataclasses import dataclass

import numpy as np

from simserve.metrics.decode_rows import DecodeRows
from simserve.metrics.itl import span_ends
from simserve.metrics.kept_out import REASONS, Waits, kept_out_ps
from simserve.metrics.phases import Phases, phases
from simserve.tables import large
from simserve.tables.columns import Categorical, Columns, Flags, Floats, Ints
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
    n = len(requests["arrival_s"])
    lives = _lives(tables, extra, rows, facts)
    paused = phases(extra.pauses, tables.spans, lives.has_finished, lives.scheduled_ps, lives.end_ps)
    start_ps = large.built(len(tables.steps["start_s"]), lambda piece: array_to_ps(tables.steps["start_s"][piece]))
    alone_ps, copy_ps = _decoded(tables, rows, paused.swapped_spans)
    prefill_ps, own_ps, recompute_ps = _prefills(tables.steps, start_ps, extra.chunks_s, lives, paused)
    queue_ps = _queue(tables.steps, start_ps, extra, lives)
    respond_ps = to_ps(facts.respond_s)

    def part(piece: slice) -> dict[str, Floats]:
        own = lives.of(piece)
        prefilled_ps, recomputed_ps = prefill_ps[piece], recompute_ps[piece]
        rest_ps = own.end_ps - own.scheduled_ps - prefilled_ps - own.preempted_ps - recomputed_ps - own.transfer_ps
        parts = {
            "front_end_s": own.routed_ps - own.arrival_ps + respond_ps,
            **{name: column[piece] for name, column in queue_ps.items()},
            "prefill_s": own_ps[piece],
            "prefill_wait_s": prefilled_ps - own_ps[piece],
            "link_s": own.link_ps,
            "decode_s": alone_ps[piece],
            "interference_s": rest_ps - alone_ps[piece] - copy_ps[piece],
            "copy_s": copy_ps[piece],
            "recompute_s": recomputed_ps,
            "batch_wait_s": own.finish_ps - respond_ps - own.end_ps,
        }
        return {name: np.where(own.has_finished, array_to_s(of_part), np.nan) for name, of_part in parts.items()}

    return large.built_all(n, part)


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

    def of(self, rows: slice) -> "_Lives":
        """Select requests."""
        return _Lives(*(column[rows] for column in vars(self).values()))


def _lives(tables: RunTables, extra: ExtraColumns, rows: DecodeRows, facts: RunFacts) -> _Lives:
    requests, spans = tables.requests, tables.spans
    n, pushes = len(requests["arrival_s"]), facts.link is not None and facts.link.how == "push"
    joined_ps, end_ps = large.full(n, np.iinfo(np.int64).max, np.int64), large.zeros(n, np.int64)
    for piece in large.pieces(len(spans["request_id"])):
        request = spans["request_id"][piece]
        np.minimum.at(joined_ps, request, array_to_ps(spans["join_s"][piece]))
        np.maximum.at(end_ps, request, array_to_ps(span_ends(rows, spans, piece)))
    statuses = requests["status"]

    def part(piece: slice) -> Columns:
        has_finished = Categorical(statuses.codes[piece], statuses.categories).is_("finished")

        def known_ps(seconds: Floats) -> Ints:
            return array_to_ps(np.where(has_finished, seconds[piece], 0.0))

        moved, own = requests["prefill_replica"][piece].astype(np.int64), requests["replica"][piece].astype(np.int64)
        routed_ps, room_ps = known_ps(extra.routed_s), known_ps(requests["transfer_wait_s"])
        transfer_ps = known_ps(requests["transfer_s"])
        notice_ps = known_ps(extra.notice_s) if pushes else 0
        return {
            "has_finished": has_finished,
            "computed_at": np.where(moved >= 0, moved, own),
            "arrival_ps": known_ps(requests["arrival_s"]),
            "routed_ps": routed_ps,
            "queued_ps": routed_ps + room_ps + notice_ps if pushes else routed_ps,
            "scheduled_ps": known_ps(requests["scheduled_s"]),
            "joined_ps": np.where(has_finished, joined_ps[piece], 0),
            "end_ps": end_ps[piece],
            "finish_ps": known_ps(requests["finish_s"]),
            "preempted_ps": known_ps(requests["preempted_s"]),
            "transfer_ps": transfer_ps,
            "link_ps": transfer_ps + notice_ps if pushes else transfer_ps - room_ps,
        }

    return _Lives(**large.built_all(n, part))


def _decoded(tables: RunTables, rows: DecodeRows, swapped_spans: Ints) -> tuple[Ints, Ints]:
    """Return the decode time of each request without prefill interference, and its waits for copies."""
    spans, steps, n = tables.spans, tables.steps, len(tables.requests["arrival_s"])

    def copies_ps(piece: slice) -> Ints:
        return array_to_ps(steps["copy_s"][rows.place(piece)])

    def alone_ps(piece: slice) -> Ints:
        lasts_ps = array_to_ps(rows.end_s[piece]) - array_to_ps(rows.start_s[piece])
        return lasts_ps - array_to_ps(steps["interference_s"][rows.place(piece)]) - copies_ps(piece)

    result = large.zeros(n, np.int64), large.zeros(n, np.int64)
    sums = [large.cumulated(len(rows), amounts_ps) for amounts_ps in (alone_ps, copies_ps)]
    for piece in large.pieces(len(rows.span_first)):
        first, last = rows.span_first[piece].copy(), rows.span_last[piece]
        # the span's first token came from a decode step
        first[swapped_spans[(swapped_spans >= piece.start) & (swapped_spans < piece.stop)] - piece.start] -= 1
        for total_ps, upto_ps in zip(result, sums, strict=True):
            np.add.at(total_ps, spans["request_id"][piece], _upto(upto_ps, last) - _upto(upto_ps, first - 1))
    return result


def _upto(sums: Ints, row: Ints) -> Ints:
    """Return the sums up to and with rows; 0 before the first."""
    result: Ints = np.where(row >= 0, sums[row], 0) if len(sums) else np.zeros(len(row), np.int64)
    return result


def _queue(steps: Columns, start_ps: Ints, extra: ExtraColumns, lives: _Lives) -> dict[str, Ints]:
    """Split the queueing time by the cause that blocked the head of the queue; the rest is the step in flight."""
    n = len(lives.queued_ps)

    def waits_ps(piece: slice) -> Ints:
        return np.where(lives.has_finished[piece], lives.scheduled_ps[piece] - lives.queued_ps[piece], 0)

    until_ps = large.built(n, lambda piece: lives.queued_ps[piece] + waits_ps(piece))
    kept_ps = kept_out_ps(steps, start_ps, extra.stalls, Waits(lives.computed_at, lives.queued_ps, until_ps))
    rest_ps = large.built(n, lambda piece: waits_ps(piece) - sum(column[piece] for column in kept_ps))
    return {f"queue_{reason}_s": column for reason, column in zip(REASONS, kept_ps, strict=True)} | {
        "queue_turn_s": rest_ps
    }


def _prefills(
    steps: Columns, start_ps: Ints, chunks_s: Floats, lives: _Lives, paused: Phases
) -> tuple[Ints, Ints, Ints]:
    """Return the duration of the first prefill, of its steps that computed part of it, and of recomputation.

    A prompt without partial chunks is computed in one step.
    """
    n = len(chunks_s)
    prefill_ps = large.built(n, lambda piece: lives.joined_ps[piece] - lives.scheduled_ps[piece])
    recompute_ps = large.zeros(n, np.int64)
    prefill_ps[paused.request], recompute_ps[paused.request] = paused.prefill_ps, paused.recompute_ps
    own_ps = large.built(n, lambda piece: prefill_ps[piece].copy())
    cut = paused.request[paused.was_cut]
    own_ps[cut] = array_to_ps(chunks_s[cut])
    is_whole = large.built(n, lambda piece: array_to_ps(chunks_s[piece]) == 0)
    is_whole[cut] = True
    several = large.flatnonzero(n, lambda piece: lives.has_finished[piece] & ~is_whole[piece])
    for piece in large.pieces(len(several)):
        request = several[piece]
        last_ps = _last_chunks_ps(steps, start_ps, lives.computed_at[request], lives.joined_ps[request])
        own_ps[request] = array_to_ps(chunks_s[request]) + last_ps
    return prefill_ps, own_ps, recompute_ps


def _last_chunks_ps(steps: Columns, start_ps: Ints, replica: Ints, joined_ps: Ints) -> Ints:
    """Return the duration of the steps that end at those instants on those replicas, `(n,)`."""
    lasts_ps = np.zeros(len(replica), np.int64)
    bounds = large.bounds(steps["replica"], int(replica.max(initial=-1)) + 1)
    for each in np.unique(replica).tolist():
        mine, rows = replica == each, slice(*bounds[each : each + 2])
        starts_ps, end_ps = start_ps[rows], joined_ps[mine]
        lasts_ps[mine] = end_ps - starts_ps[np.searchsorted(starts_ps, end_ps) - 1]
    return lasts_ps
