"""Step table: the step runs of all replicas as columns, with what prompts cost the decoding requests."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.cost.model import CostModel
from simserve.engine.cluster import Cluster
from simserve.engine.lock_step import Lane
from simserve.engine.recorder import BLOCKED_BY
from simserve.engine.replica import Replica
from simserve.tables.columns import Categorical, Columns
from simserve.tables.pieces import pieces
from simserve.tables.scratch import Scratch
from simserve.units import array_to_s

Ints = NDArray[np.int64]


def step_table(cluster: Cluster) -> Columns:
    """Return the columns of step runs, replica after replica."""
    rows, lengths = cluster.recorder.all_step_runs()
    replica = replica_of_rows(lengths, cluster.scratch)
    step, decode_step = (_Before(lengths) for _ in range(2))
    copies_ps, interference = _copies(cluster, lengths), Interference(cluster.replicas, rows, lengths)
    counters = ("prefill_tokens", "prefill_pairs", "decode_requests", "kv_tokens", "kv_blocks_used")

    def part(piece: slice) -> dict[str, NDArray[Any]]:
        own = rows[piece]
        n_steps, first_ps, growth_ps = own["n_steps"].astype(np.int64), own["first_ps"], own["growth_ps"]
        end_ps = own["start_ps"] + n_steps * first_ps + growth_ps * (n_steps * (n_steps - 1) // 2)
        waits_ps = copies_ps[piece]
        return {
            "step": step.of(n_steps, piece, replica[piece]),
            "decode_step": decode_step.of(np.where(own["decode_requests"] > 0, n_steps, 0), piece, replica[piece]),
            "n_steps": n_steps,
            "start_s": array_to_s(own["start_ps"]),
            "end_s": array_to_s(end_ps),
            "first_step_s": array_to_s(first_ps),
            "last_step_s": array_to_s(first_ps + growth_ps * (n_steps - 1)),
            **{name: np.ascontiguousarray(own[name]) for name in (*counters, "kv_blocks_reserved", "queue_len")},
            "blocked_by": own["blocked_by"].astype(np.int32),
            "accepted_tokens": np.ascontiguousarray(own["accepted_tokens"]),
            "interference_s": array_to_s(interference.of(piece, end_ps - own["start_ps"] - waits_ps)),
            "copy_s": array_to_s(waits_ps),
        }

    columns = cluster.scratch.built_all(len(rows), part)
    return {"replica": replica} | columns | {"blocked_by": blocked_by(columns["blocked_by"])}


def replica_of_rows(lengths: list[int], scratch: Scratch) -> NDArray[np.int32]:
    """Return the replica of each row, replica after replica."""
    numbers, ends = np.arange(len(lengths), dtype=np.int32), np.cumsum(lengths)

    def part(piece: slice) -> NDArray[np.int32]:
        return np.repeat(numbers, np.diff(np.clip(ends, piece.start, piece.stop), prepend=piece.start))

    return scratch.built(sum(lengths), part)


def blocked_by(codes: NDArray[np.int64]) -> Categorical:
    """Return words for codes of what kept the heads of queues out."""
    return Categorical(codes.astype(np.int32, copy=False), tuple(name or "" for name in BLOCKED_BY))


def _copies(cluster: Cluster, lengths: list[int]) -> NDArray[np.int64]:
    """Return the time each row waited for copies."""
    waits_ps = cluster.scratch.full(sum(lengths), 0, np.int64)
    for index, (first, n_rows) in enumerate(zip(np.cumsum(lengths) - lengths, lengths, strict=True)):
        copies = cluster.recorder.copies(index)
        copies = copies[copies["row"] < n_rows]  # the run may have ended before that step
        waits_ps[first + copies["row"]] = copies["wait_ps"]
    return waits_ps


class _Before:
    """Sums of counts before each row since the replica's first row, piece by piece."""

    def __init__(self, lengths: list[int]) -> None:
        self._starts = np.cumsum([0, *lengths])[:-1]
        self._n_before = 0
        self._offsets = np.zeros(len(lengths), np.int64)
        """The sum before each replica's first row."""

    def of(self, counts: NDArray[np.int64], piece: slice, replica: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the sums of the next piece."""
        upto = self._n_before + np.cumsum(counts)
        before = upto - counts
        begin = np.flatnonzero((self._starts >= piece.start) & (self._starts < piece.stop))
        self._offsets[begin] = before[self._starts[begin] - piece.start]
        self._n_before = int(upto[-1]) if len(upto) else self._n_before
        since: NDArray[np.int64] = before - self._offsets[replica]
        return since


class Interference:
    """The time of step runs beyond that of the same steps without prefill, piece by piece; exact.

    A row without decoding requests counts in full. The cost model is the one that priced the steps; a row of several
    steps has no prefill in it, so only single steps are computed. Pipeline batches that delay others count as
    interference; ranks in lockstep are as slow as the slowest would have been, so their rows are computed at once.
    """

    def __init__(self, replicas: Sequence[Replica], rows: NDArray[np.void], lengths: Sequence[int]) -> None:
        """rows: step runs of all replicas, one after the other; lengths: of each replica."""
        self._replicas, self._rows, self._ends = replicas, rows, np.cumsum(lengths)
        parts = pieces({"n": rows["decode_requests"]})
        n_most = max((int(part["n"].max(initial=0)) for part in parts), default=0)
        lines = {id(replica.cost): replica.cost for replica in replicas}
        self._lines = {key: _lines(cost, n_most) for key, cost in lines.items()}
        is_grouped = any(replica.stepping.group is not None for replica in replicas)
        self._grouped_ps = self._alone_ps(slice(0, len(rows))) if is_grouped else None

    def of(self, piece: slice, lasts_ps: Ints) -> Ints:
        """Return the interference in a piece of the rows, which last so long without copies."""
        own = self._rows[piece]
        alone_ps = self._alone_ps(piece) if self._grouped_ps is None else self._grouped_ps[piece]
        return np.where((own["n_steps"] > 1) & (own["decode_requests"] > 0), 0, lasts_ps - alone_ps)

    def _alone_ps(self, piece: slice) -> Ints:
        """Return the time of the steps without prefill."""
        first, step_runs, alone, hosts = 0, [], [], []
        for replica, end in zip(self._replicas, self._ends.tolist(), strict=True):
            start = min(max(first, piece.start), end)
            rows = self._rows[start : max(start, min(end, piece.stop))]
            bases_ps, slopes_ps, hosts_ps = self._lines[id(replica.cost)]
            n = rows["decode_requests"]
            alone.append((bases_ps[n] + slopes_ps[n] * rows["kv_tokens"]) * (n > 0))
            if len(replica.decode.windows_ps):
                alone[-1] += np.array(replica.decode.windows_ps[start - first : start - first + len(rows)], np.int64)
            hosts.append(hosts_ps[n] * (n > 0))
            step_runs.append(rows)
            first = end
        _scale_to_group(self._replicas, step_runs, alone, hosts)
        alone_ps: Ints = np.concatenate(alone)
        return alone_ps


def _lines(cost: CostModel, n_most: int) -> tuple[Ints, Ints, Ints]:
    """Return intercepts and slopes of steps of n decoding requests, and the host's time; `(n_most + 1,)` each."""
    lines = [cost.decode_line(n) for n in range(n_most + 1)]
    bases_ps = [cost.tokens_ps(n) + cost.sampled_ps(n) + intercept_ps for n, (intercept_ps, _) in enumerate(lines)]
    hosts_ps = [cost.host_ps(n) for n in range(n_most + 1)]
    slopes_ps = [slope_ps for _, slope_ps in lines]
    return np.array(bases_ps, np.int64), np.array(slopes_ps, np.int64), np.array(hosts_ps, np.int64)


def _scale_to_group(
    replicas: Sequence[Replica], step_runs: Sequence[NDArray[np.void]], alone: list[Ints], hosts: list[Ints]
) -> None:
    """Lengthen steps that wait for the host, go through pipeline stages or run in lockstep."""
    groups: dict[int, tuple[Lane, list[int]]] = {}
    for index, replica in enumerate(replicas):
        group = replica.stepping.group
        if group is not None:
            groups.setdefault(id(group), (group, []))[1].append(index)
    for group, members in groups.values():
        n_each = replicas[members[0]].cohort.n_tokens
        of_members = [[each[index] for index in members] for each in (alone, hosts)]
        _scale_to_slowest(group, n_each, [step_runs[index] for index in members], *of_members)
    for index, replica in enumerate(replicas):
        np.maximum(alone[index], hosts[index], out=alone[index])
        alone[index] = replica.slowness.steps_ps(alone[index], step_runs[index]["start_ps"])
        n_stages = replica.stepping.n_stages
        alone[index] = -(-alone[index] // n_stages) * n_stages


def _scale_to_slowest(
    group: Lane, n_each: int, step_runs: Sequence[NDArray[np.void]], alone: Sequence[Ints], hosts: Sequence[Ints]
) -> None:
    """Set `alone` of the decoding ranks to the time of a step of all ranks, which begin it at one instant.

    n_each: tokens that a step computes for a decoding request.
    """
    starts_ps, step = np.unique(np.concatenate([rows["start_ps"] for rows in step_runs]), return_inverse=True)
    slowest_ps = np.zeros(len(starts_ps), np.int64)
    np.maximum.at(slowest_ps, step, np.concatenate(alone))
    counts = np.zeros((3, len(starts_ps)), np.int64)
    n_own = np.concatenate([rows["decode_requests"] * n_each for rows in step_runs])
    np.add.at(counts[0], step, n_own)
    np.maximum.at(counts[1], step, n_own)
    prefill_tokens = np.concatenate([rows["prefill_tokens"] for rows in step_runs])
    of_groups = [group.cost.own_tokens(n) for n in range(int(prefill_tokens.max(initial=0)) + 1)]
    n_all = n_own + np.array(of_groups, np.int64)[prefill_tokens]
    most = range(int(n_all.max(initial=0)) + 1)
    sent_ps = np.array([[group.cost.overlapped_ps(n, has) for n in most] for has in (False, True)], np.int64)
    np.add.at(counts[2], step, sent_ps[1 * (n_all > n_own), n_all] > 0)
    counts[2] //= len(alone)  # split as the step was: if all ranks were to
    unique, place = np.unique(counts, axis=1, return_inverse=True)
    joint_ps = [group.cost.group_ps(n, most, bool(is_split)) for n, most, is_split in unique.T.tolist()]
    slowest_ps += np.array(joint_ps, np.int64)[place]
    np.maximum.at(slowest_ps, step, sent_ps[0][n_own] * counts[2][step])
    np.maximum.at(slowest_ps, step, np.concatenate(hosts))
    edges = np.cumsum([len(rows) for rows in step_runs])[:-1]
    for mine, rows, own_step in zip(alone, step_runs, np.split(step, edges), strict=True):
        mine[:] = slowest_ps[own_step] * (rows["decode_requests"] > 0)
