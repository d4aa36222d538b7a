"""Conservation: each token that a step computed is in an answer, was lost, or is held for a request that goes on; each
GPU-second of a replica's life is of one state."""

import numpy as np

from simserve.engine.cluster import Cluster
from simserve.engine.recorder import FINISHED, UNFINISHED
from simserve.engine.tabulate import attempt_columns
from simserve.metrics.lifetimes import Lifetimes
from simserve.tables.facts import RunFacts


def computed_tokens(cluster: Cluster) -> int:
    """Return the tokens that the steps of a run computed, except in padded batches those after the end of an answer."""
    total = 0
    for replica in cluster.replicas:
        steps, spans = cluster.recorder.step_runs(replica.id), cluster.recorder.spans(replica.id)
        decoded = steps["decode_requests"].astype(np.int64) * steps["n_steps"]
        if replica.scheduler.runs_to_completion:
            decoded = spans["last_step"] - spans["first_step"] + 1
        total += int(decoded.sum() + steps["prefill_tokens"].sum() + steps["accepted_tokens"].sum())
    return total


def wasted_tokens(cluster: Cluster) -> dict[int, int]:
    """Return what the table of requests says of each row that was sent."""
    rows = np.arange(len(cluster.rows))[cluster.sender.rows_sent]
    return dict(zip(rows.tolist(), attempt_columns(cluster)["wasted_tokens"].tolist(), strict=True))


def assert_tokens_are_conserved(cluster: Cluster, padding_tokens: int = 0) -> None:
    """Check that computed tokens = answers + recomputed - cached + wasted + held. padding_tokens: of finished rows."""
    columns, rows = cluster.recorder.columns, cluster.rows
    lost = columns["n_recomputed_tokens"] - columns["cached_tokens"]
    finished, unfinished = (np.flatnonzero(columns["status"] == status) for status in (FINISHED, UNFINISHED))
    answers = (rows.prompts[finished] + rows.outputs[finished] - 1 + lost[finished]).sum() + padding_tokens
    there = [request for replica in cluster.replicas for request in replica.batch.requests]
    held = sum(request.prefilled_tokens for request in there if columns["status"][request.row] == UNFINISHED)
    assert computed_tokens(cluster) == answers + sum(wasted_tokens(cluster).values()) + held + lost[unfinished].sum()


def assert_gpu_time_is_conserved(facts: RunFacts) -> None:
    """Check that standing by, starting, serving and draining are disjoint and fill the lives of all replicas, one by
    one."""
    lives = Lifetimes(facts)
    span_s = np.array((0.0, facts.end_s))
    states = (("ordered_s", "called_s"), ("called_s", "ready_s"), ("ready_s", "draining_s"), ("draining_s", "gone_s"))
    by_state = np.hstack([lives.lived_s(span_s, *state) for state in states])
    end_s = np.minimum(lives.at_s("gone_s"), facts.end_s)
    lived_s = np.maximum(end_s - [member.ordered_s for member in lives.members], 0.0)
    np.testing.assert_allclose(by_state.sum(axis=1), lived_s, rtol=1e-12, atol=1e-12)
    times = lives.by_state()
    parts = (times.standby_gpu_s, times.starting_gpu_s, times.serving_gpu_s, times.draining_gpu_s)
    in_all = sum(part for part in parts if part is not None)
    np.testing.assert_allclose(in_all, lives.gpus @ lived_s, rtol=1e-9, atol=1e-12)
