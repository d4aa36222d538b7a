"""Shards: replicas that cannot influence each other, served by copies of this process, to the bit as by one.

The parent routes the whole load first. Each copy serves the requests of its own replicas: it writes the columns of its
rows, which all processes share, and the rows of its replicas go into files of its own.
"""

import mmap
import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.columns.run import serve_shard
from simserve.engine.cluster import Cluster, check_ended
from simserve.engine.fleet import Member
from simserve.engine.recorder import RecordedShard
from simserve.engine.replica import Replica
from simserve.errors import SimserveError
from simserve.forks import Copy
from simserve.state.request import Request
from simserve.tables.buffers import Parts
from simserve.tables.columns import Ints
from simserve.tables.pieces import rows_where
from simserve.units import to_s

POLL_S = 0.1
"""Wall time between two looks at the progress of the copies."""

OnSend = Callable[[int, int], None]
"""Called with the number of rows sent and the instant."""


class ShardFailed(Exception):
    """A shard raised an error; a single process says which error comes first."""


@dataclass(frozen=True)
class _Shard:
    """The part of a run that one copy serves."""

    members: Sequence[Member]
    rows: Ints
    files: list[int]
    """Where its rows of steps, spans and the like go."""
    progress: memoryview
    """Rows sent and the instant."""


@dataclass(frozen=True)
class _RankState:
    """What is read of a rank after the run, beside the records."""

    least_free_blocks: int
    drafting_ps: int
    windows_ps: "array[int]"
    host: Any
    """Counts of its host tier and the blocks swapped there."""

    @classmethod
    def of(cls, rank: Replica) -> "_RankState":
        host = None if rank.tier is None else (rank.tier.counts, rank.tier.memory.swapped_blocks)
        return cls(rank.pool.least_free_blocks, rank.decode.drafting_ps, rank.decode.windows_ps, host)

    def set(self, rank: Replica) -> None:
        rank.pool.least_free_blocks = self.least_free_blocks
        rank.decode.drafting_ps, rank.decode.windows_ps = self.drafting_ps, self.windows_ps
        if rank.tier is not None:
            rank.tier.counts, rank.tier.memory.swapped_blocks = self.host


@dataclass(frozen=True)
class _Answer:
    """What a copy says of its shard."""

    parts: list[Parts]
    reasons: list[str]
    ranks: list[_RankState]
    unfinished: list[tuple[list[int], str]]
    """Rows and what they wait for, of each rank."""
    is_out_of_events: bool
    now_ps: int


def run_in_shards(
    cluster: Cluster, n_shards: int, drain_limit_ps: int | None = None, on_send: OnSend | None = None
) -> None:
    """Serve all requests as `columns.run.serve`, in n_shards copies of this process at once.

    The cluster must be built while its scratch is shared. If a process dies, its shard is tried once more. Raises
    ShardFailed where a shard fails, and SimserveError where its process dies again; the cluster is then of no use.
    """
    try:
        replica_of, out_ps = routed = _route_all(cluster)
    except SimserveError as error:
        raise ShardFailed from error
    n = len(cluster.rows)
    end_ps = None if drain_limit_ps is None else int(out_ps[-1]) + drain_limit_ps
    shards = _shards(cluster, n_shards, replica_of)
    serve = partial(_serve, cluster, routed, end_ps)
    answers = _answers(cluster, shards, serve, on_send)
    for shard, answer in zip(shards, answers, strict=True):
        for rank, state in zip(_ranks(shard), answer.ranks, strict=True):
            state.set(rank)
    recorded = [RecordedShard(shard.rows, own.parts, own.reasons) for shard, own in zip(shards, answers, strict=True)]
    cluster.recorder.merge(recorded, _member_of(cluster))
    of_rank = {
        rank.id: rows
        for shard, answer in zip(shards, answers, strict=True)
        for rank, rows in zip(_ranks(shard), answer.unfinished, strict=True)
    }
    is_deadlock = all(answer.is_out_of_events for answer in answers)
    cluster.explain_unfinished([of_rank[rank.id] for rank in cluster.replicas], is_deadlock=is_deadlock)
    still_there = sum(len(rows) for rows, _ in of_rank.values())
    check_ended(n, still_there, cluster.recorder, to_s(max(answer.now_ps for answer in answers)))


def _route_all(cluster: Cluster) -> tuple[NDArray[np.int32], Ints]:
    """Return the replica of each row and when the row reaches the router, which sees no load. Raises PolicyError."""
    sender, pick, n = cluster.trace_sender, cluster.intake.pick, len(cluster.rows)
    replica_of, out_ps = cluster.scratch.empty(n, np.int32), cluster.scratch.empty(n, np.int64)
    request = Request(0, 0, 1, 1)
    for piece in cluster.scratch.pieces(n):
        for row in range(piece.start, piece.stop):
            destination = pick(request)
            assert destination is not None, "all replicas are ready"
            replica_of[row], out_ps[row] = destination.id, sender.out_ps(row)
    sender.n_sent = n
    return replica_of, out_ps


def _member_of(cluster: Cluster) -> list[int]:
    """Return the member of each rank."""
    return [place for place, member in enumerate(cluster.members) for _ in member.ranks]


def _ranks(shard: _Shard) -> list[Replica]:
    return [rank for member in shard.members for rank in member.ranks]


def _shards(cluster: Cluster, n_shards: int, replica_of: NDArray[np.int32]) -> list[_Shard]:
    """Deal the members out, so that the replicas of each pool are spread over the shards."""
    shard_of = np.array(_member_of(cluster)) % n_shards
    result = []
    for place in range(n_shards):
        members = cluster.members[place::n_shards]
        rows = rows_where(lambda part, own=shard_of == place: own[part["replica"]], {"replica": replica_of})  # type: ignore[misc]
        progress = memoryview(mmap.mmap(-1, 16)).cast("q")
        result.append(_Shard(members, rows, cluster.recorder.new_files(), progress))
    return result


def _answers(
    cluster: Cluster, shards: Sequence[_Shard], serve: Callable[[_Shard, Any, int], None], on_send: OnSend | None
) -> list[_Answer]:
    """Return what the copies answer, by shard."""
    answers: dict[int, _Answer] = {}
    copies: dict[int, Copy] = {}
    has_died: set[int] = set()
    try:
        for place, shard in enumerate(shards):
            copies[place] = Copy.of(partial(serve, shard))
        while len(answers) < len(shards):
            waiting = {copies[place].answers: place for place in range(len(shards)) if place not in answers}
            for reader in connection.wait(list(waiting), POLL_S):
                place = waiting[reader]
                try:
                    answer = copies[place].answers.recv()
                except (EOFError, OSError) as error:
                    if place in has_died:
                        raise _died(shards[place]) from error
                    has_died.add(place)
                    copies[place].end()
                    cluster.recorder.forget(shards[place].rows)
                    cluster.rows.restore(shards[place].rows)
                    copies[place] = Copy.of(partial(serve, shards[place]))
                    continue
                if answer is None:
                    raise ShardFailed
                answers[place] = answer
            if on_send is not None:
                on_send(sum(shard.progress[0] for shard in shards), max(shard.progress[1] for shard in shards))
    finally:
        for copy in copies.values():
            copy.end()
    return [answers[place] for place in range(len(shards))]


def _died(shard: _Shard) -> SimserveError:
    ids = ", ".join(str(rank.id) for rank in _ranks(shard)[:5])
    many = len(_ranks(shard)) > 1
    return SimserveError(
        f"run: the process of replica{'s' * many} {ids}{', ...' * (len(_ranks(shard)) > 5)} must not be killed, got "
        "killed twice, most likely for lack of memory; simulate fewer requests or give --jobs 1 (nothing was written)"
    )


def _serve(
    cluster: Cluster, sent: tuple[NDArray[np.int32], Ints], end_ps: int | None, shard: _Shard, answers: Any, owner: int
) -> None:
    """Serve a shard in a copy of the parent, and send the answer; None where it fails."""

    def on_send(n_sent: int, now_ps: int) -> None:
        if os.getppid() != owner:
            os._exit(1)
        cluster.recorder.spill()
        shard.progress[0], shard.progress[1] = n_sent, now_ps

    answer = None
    try:
        cluster.recorder.spill_into(shard.files)
        is_out_of_events = serve_shard(cluster, shard.rows, sent, shard.members, end_ps, on_send)
        ranks = _ranks(shard)
        answer = _Answer(
            cluster.recorder.spilled(),
            cluster.recorder.reasons,
            [_RankState.of(rank) for rank in ranks],
            [cluster.unfinished_of(rank) for rank in ranks],
            is_out_of_events,
            cluster.clock.now_ps,
        )
    finally:
        answers.send(answer)
