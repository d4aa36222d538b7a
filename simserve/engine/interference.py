"""Interference: the time of steps beyond what their decoding requests alone would have taken. Exact."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simserve.cost.model import CostModel
from simserve.engine.replica import Group, Replica
from simserve.tables.pieces import pieces

Ints = NDArray[np.int64]


class Interference:
    """The time of step runs beyond that of the same steps without prefill, piece by piece.

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
    groups: dict[int, tuple[Group, list[int]]] = {}
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
        n_stages = replica.stepping.n_stages
        alone[index] = -(-alone[index] // n_stages) * n_stages


def _scale_to_slowest(
    group: Group, n_each: int, step_runs: Sequence[NDArray[np.void]], alone: Sequence[Ints], hosts: Sequence[Ints]
) -> None:
    """Set `alone` of the decoding ranks to the time of a step of all ranks, which begin it at one instant.

    n_each: tokens that a step computes for a decoding request.
    """
    starts_ps, step = np.unique(np.concatenate([rows["start_ps"] for rows in step_runs]), return_inverse=True)
    slowest_ps = np.zeros(len(starts_ps), np.int64)
    np.maximum.at(slowest_ps, step, np.concatenate(alone))
    counts = np.zeros((2, len(starts_ps)), np.int64)
    n_own = np.concatenate([rows["decode_requests"] * n_each for rows in step_runs])
    np.add.at(counts[0], step, n_own)
    np.maximum.at(counts[1], step, n_own)
    unique, place = np.unique(counts, axis=1, return_inverse=True)
    slowest_ps += np.array([group.cost.group_ps(n, most) for n, most in unique.T.tolist()], np.int64)[place]
    np.maximum.at(slowest_ps, step, np.concatenate(hosts))
    edges = np.cumsum([len(rows) for rows in step_runs])[:-1]
    for mine, rows, own_step in zip(alone, step_runs, np.split(step, edges), strict=True):
        mine[:] = slowest_ps[own_step] * (rows["decode_requests"] > 0)
