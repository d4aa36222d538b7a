"""Interference: the time of steps beyond what their decoding requests alone would have taken. Exact."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simserve.cost.model import CostModel
from simserve.engine.replica import Group, Replica

Ints = NDArray[np.int64]


def interference_ps(replicas: Sequence[Replica], step_runs: Sequence[NDArray[np.void]], lasts_ps: Ints) -> Ints:
    """Return lasts_ps minus the time of the same steps without prefill, `(n_rows,)`, replica after replica.

    A row without decoding requests counts in full. The cost model is the one that priced the steps; a row of several
    steps has no prefill in it, so only single steps are computed. Pipeline batches that delay others count as
    interference; ranks in lockstep are as slow as the slowest would have been.
    """
    n_most = max((int(rows["decode_requests"].max(initial=0)) for rows in step_runs), default=0)
    lines: dict[int, tuple[Ints, Ints, Ints]] = {}
    alone: list[Ints] = []
    hosts: list[Ints] = []
    for replica, rows in zip(replicas, step_runs, strict=True):
        if id(replica.cost) not in lines:
            lines[id(replica.cost)] = _lines(replica.cost, n_most)
        bases_ps, slopes_ps, hosts_ps = lines[id(replica.cost)]
        n = rows["decode_requests"]
        alone.append((bases_ps[n] + slopes_ps[n] * rows["kv_tokens"]) * (n > 0))
        if len(replica.decode.windows_ps):
            alone[-1] += np.array(replica.decode.windows_ps, np.int64)
        hosts.append(hosts_ps[n] * (n > 0))
    _scale_to_group(replicas, step_runs, alone, hosts)
    alone_ps: Ints = np.concatenate(alone)
    n_steps, decodes = (np.concatenate([rows[name] for rows in step_runs]) for name in ("n_steps", "decode_requests"))
    return np.where((n_steps > 1) & (decodes > 0), 0, lasts_ps - alone_ps)


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
