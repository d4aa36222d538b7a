"""Recorder: stores a run as one row per request, step run and span, never per token."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simserve.state.planner import WORDS
from simserve.tables.buffers import Buffers, Parts
from simserve.tables.scratch import Scratch

BLOCKED_BY: Final[Mapping[str | None, int]] = MappingProxyType({word: number for number, word in enumerate(WORDS)})
"""Why the head of the queue was not admitted, as stored."""

STATUS = ("unfinished", "finished", "rejected", "timed_out", "failed")
"""How a request ended; its index in this tuple is stored."""

UNFINISHED: Final = 0
FINISHED: Final = 1
REJECTED: Final = 2
TIMED_OUT: Final = 3
FAILED: Final = 4

NEVER: Final = -1
"""Marks an instant without a value in the columns here. Outside the engine it is NaN, and null in a file."""

STEP_RUN_ROW = np.dtype(
    [
        ("start_ps", "<i8"),
        ("first_ps", "<i8"),
        ("growth_ps", "<i8"),
        ("prefill_pairs", "<i8"),
        ("kv_tokens", "<i8"),
        ("n_steps", "<i4"),
        ("prefill_tokens", "<i4"),
        ("decode_requests", "<i4"),
        ("kv_blocks_used", "<i4"),
        ("kv_blocks_reserved", "<i4"),
        ("queue_len", "<i4"),
        ("blocked_by", "<i4"),
        ("accepted_tokens", "<i4"),
    ]
)
"""Step i of a step run lasts first_ps + i * growth_ps; the counters are those at its start."""

SPAN_ROW = np.dtype([("request_id", "<i8"), ("first_step", "<i8"), ("last_step", "<i8"), ("join_ps", "<i8")])
"""A token at join_ps, then one at the end of each decode step of the replica from first to last, if any."""

pack_step: Final = Struct("<qqqqqiiiiiiii").pack
"""Packs all fields of a STEP_RUN_ROW."""

PAUSE_ROW = np.dtype([("request_id", "<i8"), ("left_ps", "<i8"), ("back_ps", "<i8"), ("is_swapped", "<i8")])
"""A request lost its blocks at left_ps and had a slot again at back_ps; a swapped one kept its computed tokens."""

_PACK_PAUSE: Final = Struct("<qqqq").pack

STALL_ROW = np.dtype([("at_ps", "<i8"), ("blocked_by", "<i8")])
"""At this instant a replica with waiting requests began no step; it stalls until it begins one."""

_PACK_STALL: Final = Struct("<qq").pack

COPY_ROW = np.dtype([("row", "<i8"), ("wait_ps", "<i8")])
"""A step run, by its index in its replica, and the time it waited for copies from or to host memory."""

_PACK_COPY: Final = Struct("<qq").pack

_TIME_COLUMNS = ("scheduled_ps", "first_token_ps", "finish_ps", "routed_ps")
_COUNT_COLUMNS = (
    "preempted_ps",
    "n_preemptions",
    "n_recomputed_tokens",
    "status",
    "status_reason",
    "transfer_ps",
    "transfer_wait_ps",
    "cached_tokens",
    "n_swaps",
    "host_cached_tokens",
    "disk_cached_tokens",
    "chunks_ps",
    "notice_ps",
    "decode_cached_tokens",
    "n_failures",
    "n_migrations",
)

_FILLS = dict.fromkeys((*_TIME_COLUMNS, "replica", "prefill_replica"), NEVER) | dict.fromkeys(_COUNT_COLUMNS, 0)
"""Columns of requests and the values of rows without an event."""


@dataclass(frozen=True)
class RecordedShard:
    """What another process recorded of its rows, beside the columns that all processes write."""

    rows: NDArray[np.int64]
    parts: list[Parts]
    """Where the rows of its replicas are."""
    reasons: list[str]
    """Reasons by the codes in its rows; each has a row."""


SPILL_BYTES = 1 << 25
"""Bytes of rows in memory; more of them go into files."""


class Recorder:
    """Columns of a run. Row i of a request column is row i of the trace.

    Of a long run only the rows in use are in memory: the engine calls `spill` now and then.

    fast: packed rows and memoryviews take a fraction of the time and memory of Python objects, and become numpy columns
    without a copy.
    """

    def __init__(self, n_requests: int, n_replicas: int = 0, scratch: Scratch | None = None) -> None:
        self.scratch = scratch or Scratch()
        self.reasons: list[str] = [""]
        # Each replica appends whole rows at each commit.
        self._buffers = [Buffers(self.scratch) for _ in range(5)]
        self._step_run_buffers, self._span_buffers, self._stall_buffers, self._copy_buffers, pauses = self._buffers
        self.step_run_rows, self.span_rows = self._step_run_buffers.tails, self._span_buffers.tails
        self._stalls, self._copies = self._stall_buffers.tails, self._copy_buffers.tails
        self._pauses = bytearray()
        pauses.tails.append(self._pauses)
        self.add_replicas(n_replicas)
        self.flush_steps: Callable[[], object] = object
        """Appends the rows of steps that the engine holds back."""
        self._computed: dict[int, tuple[int, int, int]] = {}
        """Rows of each replica that `computed_tokens` has read, with their prompt and decode tokens."""
        self._restarted_ps: dict[int, int] = {}
        """When each row that was lost with its replica started anew."""
        self.moved: dict[int, int] = {}
        """Rows that went on elsewhere, with the transfer_wait of the transfers that have ended."""
        self._left_behind: set[Hashable] = set()
        """What such rows were until then: a step may still compute them."""
        self.stored_tokens: dict[int, int] = {}
        """Tokens stored for each row that ended early when it did, and its chunks that have ended since."""
        self.columns: dict[str, NDArray[np.int64]] = {}
        self.grow(n_requests)

    def add_replicas(self, n: int) -> None:
        """Make room for the rows of n more replicas."""
        for rows in (self.step_run_rows, self.span_rows, self._stalls, self._copies):
            rows += [bytearray() for _ in range(n)]

    def grow(self, n_requests: int) -> None:
        """Make room for n_requests rows, if there is too little."""
        if self.columns and n_requests <= len(self.columns["status"]):
            return
        for name, fill in _FILLS.items():
            column = self.scratch.full(n_requests, fill, np.int64)
            old = self.columns.get(name, column[:0])
            for piece in self.scratch.pieces(len(old)):
                column[piece] = old[piece]
            self.columns[name] = column
        views = {name: column.data for name, column in self.columns.items()}
        self.scheduled_ps, self.first_token_ps, self.finish_ps, self.routed_ps = (views[name] for name in _TIME_COLUMNS)
        self._preempted, self._n_preemptions, self._n_recomputed, self.status, self._reason, *later = (
            views[name] for name in _COUNT_COLUMNS
        )
        self._transfer, self._transfer_wait, self._cached, self._n_swaps, self._on_host, self._on_disk, *later = later
        _, self._notice, self._decode_cached, self.n_failures, self._n_migrations = later
        self.replica, self._prefill_replica = views["replica"], views["prefill_replica"]

    def hand_over(self, row: int, sender: int, receiver: int) -> None:
        """Record that another replica will decode a prefilled request, which did not go on elsewhere before."""
        if row in self.moved:
            return
        self._prefill_replica[row], self.replica[row] = sender, receiver

    def find_room(self, row: int, waited_ps: int, found_tokens: int, notice_ps: int = 0) -> None:
        """Record how long a request waited for a slot and blocks on its decode replica, how much of its prompt was
        found there, and the time of the notice."""
        if row in self.moved:
            self._transfer_wait[row] += 0 if notice_ps else waited_ps
            return
        self._transfer_wait[row] = waited_ps
        if found_tokens:
            self._decode_cached[row] = found_tokens
        if notice_ps:
            self._notice[row] = notice_ps

    def arrive(self, row: int, waited_ps: int) -> None:
        """Record how long after its prefill the keys and values of a request arrived."""
        self._transfer[row] += waited_ps
        if row in self.moved:
            self.moved[row] = self._transfer_wait[row]

    def find(self, row: int, n_tokens: int, *, is_first: bool) -> None:
        """Record the prefix-cache hit of an admission, the first one or after a preemption."""
        if is_first and row not in self.moved:
            self._cached[row] = n_tokens
        else:
            self._n_recomputed[row] -= n_tokens

    def read(self, row: int, host_tokens: int, disk_tokens: int) -> None:
        """Record how many tokens of the hit were read from host memory, and from disk."""
        if row not in self.moved:
            self._on_host[row], self._on_disk[row] = host_tokens, disk_tokens

    def swap(self, row: int) -> None:
        """Record a preemption that moved keys and values to host memory."""
        self._n_preemptions[row] += 1
        self._n_swaps[row] += 1

    def preempt(self, row: int, n_lost_tokens: int) -> None:
        """Record a preemption and the tokens it lost."""
        self._n_preemptions[row] += 1
        self._n_recomputed[row] += n_lost_tokens

    def resume(self, row: int, left_ps: int, now_ps: int, *, is_swapped: bool = False) -> None:
        """Record that a preempted request runs again."""
        self._preempted[row] += now_ps - left_ps
        self._pauses += _PACK_PAUSE(row, left_ps, now_ps, is_swapped)

    def stall(self, replica: int, now_ps: int, blocked_code: int) -> None:
        """Record that no step begins although requests wait."""
        self._stalls[replica] += _PACK_STALL(now_ps, blocked_code)

    def wait_for_copies(self, replica: int, wait_ps: int) -> None:
        """Record how long the step run that is committed next waited for copies."""
        n_rows = self._step_run_buffers.n_bytes(replica) // STEP_RUN_ROW.itemsize
        self._copies[replica] += _PACK_COPY(n_rows, wait_ps)

    def restart(self, row: int, life: Hashable, n_stored_tokens: int, now_ps: int) -> None:
        """Forget what a failed replica did for a request that starts anew, except for the tokens computed there.

        life: what it was until now.
        """
        n_lost_tokens = n_stored_tokens - self._cached[row]
        kept = {"routed_ps", "status", "status_reason", "n_recomputed_tokens", "n_failures"}
        for name in _FILLS.keys() - kept:
            self.columns[name][row] = _FILLS[name]
        self._n_recomputed[row] += n_lost_tokens
        self.n_failures[row] += 1
        self._restarted_ps[row] = now_ps
        self._left_behind.add(life)

    def move(self, row: int, life: Hashable, n_stored_tokens: int) -> None:
        """Record that a request with a token was lost with its replica and goes on elsewhere; all until its first token
        stays as it is. A transfer that had not ended is forgotten.

        life: what it was until now.
        """
        has_arrived = self._transfer[row] > 0 or self._notice[row] > 0
        wait_ps = self._transfer_wait[row] if has_arrived else 0
        self._transfer_wait[row] = self.moved[row] = self.moved.get(row, wait_ps)
        self._n_recomputed[row] += n_stored_tokens
        self.n_failures[row] += 1
        self._n_migrations[row] += 1
        self._left_behind.add(life)

    def reject(self, row: int, reason: str) -> None:
        """Record that a request can never run."""
        self.status[row] = REJECTED
        self._reason[row] = self._code(reason)

    def end_early(self, row: int, n_stored_tokens: int) -> None:
        """Record the tokens stored for a request without an answer when its replica drops or loses it, whichever is
        first."""
        self.stored_tokens.setdefault(row, n_stored_tokens)

    def lose_chunk(self, row: int, life: Hashable, n_tokens: int) -> None:
        """Count a chunk that ends after its request was lost with another replica: in vain, or computed again."""
        if life in self._left_behind:
            self._n_recomputed[row] += n_tokens
            self._left_behind.discard(life)
        else:
            self.stored_tokens[row] += n_tokens

    def fail(self, row: int, n_stored_tokens: int, reason: str, *, has_first: bool) -> None:
        """Record that a request was lost with its replica. has_first: its client has the tokens computed so far."""
        self.end_early(row, n_stored_tokens)
        self.status[row] = FAILED
        if not has_first:
            self.first_token_ps[row] = NEVER
        self._reason[row] = self._code(reason)

    def explain(self, row: int, reason: str) -> None:
        """Record why a request did not finish, or finished otherwise than asked."""
        self._reason[row] = self._code(reason)

    def spill(self) -> None:
        """Move the rows of a long run into files. Raises OutputError for a full disk."""
        if sum(sum(map(len, buffers.tails)) for buffers in self._buffers) >= SPILL_BYTES:
            for buffers in self._buffers:
                buffers.spill()
            self.scratch.release()

    # -- shards, which other processes serve -----------------------------------------------------------------------

    def new_files(self) -> list[int]:
        """Open the files that a shard spills into. Raises OutputError."""
        return [buffers.new_file() for buffers in self._buffers]

    def spill_into(self, files: Sequence[int]) -> None:
        """Spill into these files."""
        for buffers, file in zip(self._buffers, files, strict=True):
            buffers.spill_into(file)

    def spilled(self) -> list[Parts]:
        """Spill, and return where all rows are."""
        return [buffers.spilled() for buffers in self._buffers]

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Forget what was recorded of rows since they reached the router."""
        for name in _FILLS.keys() - {"routed_ps"}:
            self.columns[name][rows] = _FILLS[name]

    def merge(self, shards: Sequence["RecordedShard"], member_of: Sequence[int]) -> None:
        """Add the rows and reasons of all shards, in the order of a single process; their columns are here.

        member_of: the member of each replica; at one instant members plan in their order.
        """
        for shard in shards:
            for buffers, parts in zip(self._buffers, shard.parts, strict=True):
                buffers.adopt(parts)
        self._merge_reasons([shard for shard in shards if len(shard.reasons) > 1])
        pauses = self._buffers[-1].rows(0, PAUSE_ROW)
        if len(pauses):
            members = np.asarray(member_of)[self.columns["replica"][pauses["request_id"]]]
            order = np.lexsort((members, pauses["back_ps"]))
            self._buffers[-1].replace(0, pauses[order].tobytes())
            self.spill()

    def _merge_reasons(self, shards: Sequence["RecordedShard"]) -> None:
        """Number reasons in the order in which their first rows were sent."""
        column, first_rows = self.columns["status_reason"], []
        for shard in shards:
            codes = column[shard.rows]
            of_shard = enumerate(shard.reasons[1:], 1)
            first_rows += [(int(shard.rows[np.argmax(codes == code)]), reason) for code, reason in of_shard]
        for _, reason in sorted(first_rows):
            self._code(reason)
        for shard in shards:
            column[shard.rows] = np.array([*map(self._code, shard.reasons)])[column[shard.rows]]

    def n_with(self, status: int) -> int:
        """Return the number of requests with a status."""
        column = self.columns["status"]
        return sum(int((column[piece] == status).sum()) for piece in self.scratch.pieces(len(column)))

    def _code(self, reason: str) -> int:
        if reason not in self.reasons:
            self.reasons.append(reason)
        return self.reasons.index(reason)

    def step_runs(self, replica: int) -> NDArray[np.void]:
        """Return the step runs of a replica in order, `(n_step_runs,)` of STEP_RUN_ROW."""
        return self._step_run_buffers.rows(replica, STEP_RUN_ROW)

    def computed_tokens(self, replica: int) -> tuple[int, int]:
        """Return the prompt and decode tokens of the step runs so far; O(those since the last call)."""
        self.flush_steps()
        n_seen, n_prompt, n_decode = self._computed.get(replica, (0, 0, 0))
        n_rows, tail = self._step_run_buffers.n_bytes(replica) // STEP_RUN_ROW.itemsize, self.step_run_rows[replica]
        n_bytes = (n_rows - n_seen) * STEP_RUN_ROW.itemsize
        is_there = n_bytes <= len(tail)
        new = np.frombuffer(tail[len(tail) - n_bytes :], STEP_RUN_ROW) if is_there else self.step_runs(replica)[n_seen:]
        n_prompt += int(new["prefill_tokens"].sum())
        n_decode += int((new["decode_requests"].astype(np.int64) * new["n_steps"] + new["accepted_tokens"]).sum())
        self._computed[replica] = n_rows, n_prompt, n_decode
        return n_prompt, n_decode

    def all_step_runs(self) -> tuple[NDArray[np.void], list[int]]:
        """Return the step runs of all replicas, one after the other, and the number of each."""
        return self._step_run_buffers.all_rows(STEP_RUN_ROW)

    def spans(self, replica: int) -> NDArray[np.void]:
        """Return the spans of a replica in the order in which they ended, `(n_spans,)` of SPAN_ROW."""
        return self._span_buffers.rows(replica, SPAN_ROW)

    def all_spans(self) -> tuple[NDArray[np.void], list[int]]:
        """Return the spans of all replicas, one after the other, and the number of each."""
        return self._span_buffers.all_rows(SPAN_ROW)

    def pauses(self) -> NDArray[np.void]:
        """Return the preemptions that ended before the run did, in that order, of PAUSE_ROW; none before a restart."""
        pauses = self._buffers[-1].rows(0, PAUSE_ROW)
        if not self._restarted_ps:
            return pauses
        restarted_ps = [self._restarted_ps.get(row, NEVER) for row in pauses["request_id"].tolist()]
        return pauses[pauses["left_ps"] > restarted_ps]

    def all_stalls(self) -> tuple[NDArray[np.void], list[int]]:
        """Return the stalls of all replicas, of STALL_ROW, each in order, and the number of each."""
        return self._stall_buffers.all_rows(STALL_ROW)

    def copies(self, replica: int) -> NDArray[np.void]:
        """Return the step runs of a replica that waited for copies, in order, of COPY_ROW."""
        return self._copy_buffers.rows(replica, COPY_ROW)
