"""Agreement: engine and oracle serve the same load, and their records are compared."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.admission.base import Admission
from simserve.columns import run as columns
from simserve.columns.arrivals import NextRows
from simserve.columns.loop import Loop
from simserve.engine.cluster import Cluster
from simserve.engine.fleet import Control
from simserve.engine.frontend import FrontEnd
from simserve.engine.handoff import Disaggregation
from simserve.engine.link import LinkSpec
from simserve.engine.offered import Offered, Patience
from simserve.engine.recorder import FAILED, FINISHED, SPAN_ROW, STEP_RUN_ROW, UNFINISHED
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.routing_view import Delay
from simserve.engine.tabulate import member_facts, tabulate
from simserve.metrics.decode_rows import decode_rows
from simserve.metrics.slowest import LATENCIES, parts_by_latency
from simserve.metrics.stats import latency_columns
from simserve.metrics.time_split import PARTS, split_columns
from simserve.routers.base import Router
from simserve.splitters.base import Splitter
from simserve.tables.columns import Columns
from simserve.tables.facts import LinkFacts, RunFacts
from simserve.units import array_to_ps, to_s
from simserve.workload.trace import Trace
from tests import oracle
from tests.conservation import assert_gpu_time_is_conserved, assert_tokens_are_conserved, wasted_tokens
from tests.effort import proved
from tests.metrics.stories import pool_facts, run_facts
from tests.oracle_fleet import Change, Observed, Script
from tests.oracle_gray import Windows, windows_of

ROUNDING_S = 1e-9
"""Far above the rounding of sums in seconds, far below any step."""


def own(setups: list[ReplicaSetup]) -> list[ReplicaSetup]:
    """Copy a policy for each replica, as it may keep state."""
    return [replace(setup, scheduler=deepcopy(setup.scheduler)) for setup in setups]


def run_both(
    setups: list[ReplicaSetup],
    router: Callable[[], Router],
    load: Trace,
    concurrency: int | None,
    front_end: FrontEnd | None = None,
    link: LinkSpec | None = None,
    delay: Delay | None = None,
    stop_ps: int | None = None,
    patience: Patience | None = None,
    admission: Admission | None = None,
    is_pushed: bool = False,
    splitter: Splitter | None = None,
    n_timed: int = 0,
    changes: Sequence[Change] | None = None,
    control: Control | None = None,
) -> tuple[Cluster, oracle.OracleRun]:
    """Serve the same load with both, each with policies of its own; check how the engine's times are split. What a
    control has changed in the engine's fleet, the oracle's is told to change."""

    def how() -> Disaggregation | None:
        return None if link is None else Disaggregation(router(), link, is_pushed, splitter)

    offered = Offered(load, concurrency, None, stop_ps, patience, n_timed)
    observed = None if control is None else Observed(control)
    decides = observed if changes is None else Script(changes, own(setups))

    cluster = Cluster(own(setups), router(), offered, 7, front_end, how(), delay, deepcopy(admission), decides)
    run_watched(cluster)
    requests, facts = request_table(cluster, how())
    assert_times_are_split(requests, facts)
    assert_gpu_time_is_conserved(replace(facts, members=member_facts(cluster)))
    gray: tuple[Windows, Windows] = ({}, {})
    if observed is not None and observed.recorded is not None:
        changes, is_shared = observed.recorded.changes, link is not None and link.is_shared
        gray = windows_of(control, changes, setups, 2 * cluster.clock.now_ps, is_shared=is_shared)
    sent = (delay, stop_ps, patience, deepcopy(admission), n_timed, changes, *gray)
    return cluster, oracle.run(own(setups), router(), load, 7, concurrency, front_end, how(), *sent)


def run_watched(cluster: Cluster, drain_limit_ps: int | None = None, meddle: Callable[[], None] = lambda: None) -> None:
    """Serve a load, and look after every instant; a compiled run is not watched. meddle: called before each look."""
    run: Any = columns._run

    def watched(cluster: Cluster, building: columns.Building, arrivals: NextRows, _: Any) -> bool:
        def look(now_ps: int) -> None:
            meddle()
            check(cluster, building.loop, now_ps)

        is_deadlock: bool = run(cluster, building, arrivals, look)
        return is_deadlock

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "INSTANTS_A_LOOK", 1)
        patch.setattr(columns, "_run", watched)
        columns.serve(cluster, drain_limit_ps)


def check(cluster: Cluster, loop: Loop, now_ps: int) -> None:
    """Check that no replica has lost or made up a block, that policies know how many tokens each request has, that no
    request is in two places, and that routers know the least busy member."""
    routing_views = [each for _, each in cluster._wiring.views]
    routing_views += [each.canary.view for each in routing_views if each.canary is not None]
    for routing_view in [each for each in routing_views if each.views]:
        loads = [view.n_outstanding for view in routing_view.views]
        assert routing_view.views.least_busy() == loads.index(min(loads)), now_ps
    places: list[int] = []
    for replica, batch in ((each, loop.replicas[each.id].batch) for each in cluster.replicas):
        counts = (replica.pool.free_blocks, replica.pool.used_blocks, replica.pool.reserved_blocks)
        assert min(counts) >= 0 and sum(counts) == replica.pool.total_blocks, (now_ps, counts)
        charged: Any = getattr(getattr(replica.scheduler, "_planner", None), "running", ())  # of sglang
        for place in [place for place in batch.running.places() if place in charged]:
            stored_tokens = batch.records.live.prompt_tokens[place] + charged.emitted_tokens(place) - 1
            assert stored_tokens == batch.stored_tokens(place), now_ps
        swapped = [] if batch.swaps is None else batch.swaps.places
        places += [*batch.prompts.waiting.places(), *batch.prompts.coming.places(), *batch.running.places()]
        places += [*batch.side.places(), *swapped]
    assert len(places) == len(set(places)), (now_ps, sorted(places))


def request_table(cluster: Cluster, how: Disaggregation | None = None) -> tuple[Columns, RunFacts]:
    """Return the table of requests that the metrics make of a run, and its facts."""
    ranks = [member.setup for member in cluster.members for _ in member.ranks]
    run = tabulate(cluster, np.arange(len(ranks), dtype=np.int32), tuple(f"p{i}" for i in range(len(ranks))))
    pools = tuple(
        replace(pool_facts(n_replicas=1, streamed=rank.scheduler.stream), role=rank.role, name=f"p{i}")
        for i, rank in enumerate(ranks)
    )
    link = how and LinkFacts(1.0, to_s(how.link.latency_ps), False, 1.0, "push" if how.is_pushed else "pull")
    facts = run_facts(run, pools=pools, link=link, respond_s=to_s(cluster.front_end.respond_ps))
    columns = run.requests | latency_columns(run.requests)
    return columns | split_columns(run, decode_rows(run.steps, run.spans), facts), facts


def assert_times_are_split(requests: Columns, facts: RunFacts) -> None:
    """Check that the parts of every finished request's time are not negative and sum to its latencies, and that no
    request recomputes without a preemption.

    E2E is exact while a float of seconds holds every picosecond, up to 4,096 s; later its parts, like TTFT and TPOT at
    all times, are exact up to rounding.
    """
    finished = requests["status"].is_("finished")
    exact = {name: array_to_ps(requests[name][finished]) for name in PARTS}
    last_s = float(np.max(requests["finish_s"][finished], initial=0.0))
    slack_ps = 0 if last_s < 4096 else round(len(PARTS) * np.spacing(last_s) * 1e12)
    negative = {name: ps.min(initial=0) for name, ps in exact.items() if ps.min(initial=0) < -slack_ps}
    assert not negative, negative
    off_ps = np.sum(list(exact.values()), axis=0) - array_to_ps(requests["e2e_s"][finished])
    assert np.abs(off_ps).max(initial=0) <= slack_ps
    parts_of = parts_by_latency(requests, np.flatnonzero(finished), facts)
    for latency in LATENCIES if finished.any() else ():
        parts = parts_of(latency)
        known = ~np.isnan(requests[latency][finished])
        least = {name: values[known].min(initial=0.0) for name, values in parts.items()}
        assert {name: value for name, value in least.items() if value < -ROUNDING_S} == {}, latency
        in_place = known & (requests["n_preemptions"][finished] + requests["n_migrations"][finished] == 0)
        assert parts["recompute_s"][in_place].max(initial=0.0) <= ROUNDING_S, latency
        total_s = np.sum([values[known] for values in parts.values()], axis=0)
        # A part below ROUNDING_S is left out of a latency, as a hand-over of half a nanosecond, and so may each be.
        off_s = np.abs(total_s - requests[latency][finished][known]).max(initial=0.0)
        assert off_s < len(parts) * ROUNDING_S, latency


def request_rows(cluster: Cluster) -> dict[int, tuple[int, ...]]:
    """Return the engine's record of each request sent and not refused."""
    columns = cluster.recorder.columns
    names = (
        "replica",
        "cached_tokens",
        "prefill_replica",
        "transfer_ps",
        "transfer_wait_ps",
        "scheduled_ps",
        "first_token_ps",
        "finish_ps",
        "preempted_ps",
        "n_preemptions",
        "n_swaps",
        "host_cached_tokens",
        "disk_cached_tokens",
        "decode_cached_tokens",
        "n_failures",
        "n_migrations",
    )
    table = np.stack([columns[name] for name in (*names, "n_recomputed_tokens")], axis=1).tolist()
    sent = np.arange(len(table))[cluster.sender.rows_sent].tolist()
    return {row: tuple(table[row]) for row in sent if columns["status"][row] != 2}


def oracle_rows(run: oracle.OracleRun) -> dict[int, tuple[int, ...]]:
    """Return the oracle's record of each request sent and not refused."""
    return {
        row: (
            life.replica if life.scheduled_ps >= 0 else -1,
            life.cached_tokens,
            life.prefill_replica,
            life.transfer_ps,
            life.transfer_wait_ps,
            life.scheduled_ps,
            life.token_ps[0] if life.first_ps is None else life.first_ps,
            life.finish_ps,
            life.preempted_ps,
            life.n_preemptions,
            life.n_swaps,
            life.host_cached_tokens,
            life.disk_cached_tokens,
            life.decode_cached_tokens,
            run.n_failures[row],
            run.n_migrations[row],
            life.n_recomputed_tokens,
        )
        for row, life in run.lives.items()
    }


def engine_steps(cluster: Cluster, replica: int) -> list[dict[str, int]]:
    """Return the step runs of a replica, one row per step."""
    steps = []
    for values in cluster.recorder.step_runs(replica).tolist():
        row = dict(zip(STEP_RUN_ROW.names or (), values, strict=True))
        at_ps = row["start_ps"]
        for i in range(row["n_steps"]):
            end_ps = at_ps + row["first_ps"] + i * row["growth_ps"]
            steps.append(
                row
                | {
                    "start_ps": at_ps,
                    "end_ps": end_ps,
                    "kv_tokens": row["kv_tokens"] + i * row["decode_requests"],
                    "is_first": i == 0,
                }
            )
            at_ps = end_ps
    return steps


def token_times(cluster: Cluster) -> dict[int, list[int]]:
    """Return every token's time, from spans and step runs alone, as a reader of the files would."""
    times: dict[int, list[int]] = {}
    for replica in range(len(cluster.replicas)):
        ends = [step["end_ps"] for step in engine_steps(cluster, replica) if step["decode_requests"]]
        for values in cluster.recorder.spans(replica).tolist():
            span = dict(zip(SPAN_ROW.names or (), values, strict=True))
            mine = times.setdefault(span["request_id"], [])
            mine += [span["join_ps"], *ends[span["first_step"] : span["last_step"] + 1]]
    return times


def assert_agreement(setups: list[ReplicaSetup], cluster: Cluster, truth: oracle.OracleRun) -> None:
    """Compare every request, step and token."""
    assert request_rows(cluster) == oracle_rows(truth)
    assert cluster.rows.arrivals[: len(cluster.rows)].tolist() == truth.sent_ps
    assert set(np.flatnonzero(cluster.recorder.columns["status"] == 2)) == truth.rejected
    for index, replica in enumerate(truth.replicas):
        steps = engine_steps(cluster, index)
        assert [
            (s["start_ps"], s["end_ps"], s["prefill_tokens"], s["decode_requests"], s["kv_tokens"]) for s in steps
        ] == [(s.start_ps, s.end_ps, s.prefill_tokens, s.decode_requests, s.kv_tokens) for s in replica.steps]
        assert [s["accepted_tokens"] for s in steps] == [s.accepted_tokens for s in replica.steps]
        at_starts = [
            (mine["kv_blocks_used"], mine["queue_len"], true.used_blocks, true.queue_len)
            for mine, true in zip(steps, replica.steps, strict=True)
            if mine["is_first"]
        ]
        assert [a[:2] for a in at_starts] == [a[2:] for a in at_starts]
        if replica.vtc is not None:
            counters = cluster.replicas[index].scheduler._counters  # type: ignore[attr-defined]
            shares = {tenant: counters[tenant] for tenant in replica.vtc.counters}
            assert shares == pytest.approx(replica.vtc.counters)
    if all(setup.scheduler.stream for setup in setups):
        assert {row: sorted(times) for row, times in token_times(cluster).items()} == {
            row: sorted(set(life.token_ps))
            for row, life in truth.lives.items()  # tokens of one step come together
            if life.token_ps
        }
        assert all(
            len(life.token_ps) == cluster.rows.output_tokens[row]
            for row, life in truth.lives.items()
            if life.first_ps is None  # without time-outs
        )
    assert set(np.flatnonzero(cluster.recorder.columns["status"] == FAILED)) == truth.failed
    status, wasted = cluster.recorder.columns["status"].tolist(), wasted_tokens(cluster)
    assert wasted == {row: 0 if status[row] in (UNFINISHED, FINISHED) else truth.n_computed[row] for row in wasted}
    assert_tokens_are_conserved(cluster, sum(truth.lives[row].padding for row in wasted if status[row] == FINISHED))
    lives = (
        [(each.ordered_ps, each.ready_ps, each.draining_ps, each.gone_ps) for each in members]
        for members in (cluster.members, truth.members)
    )
    assert next(lives) == next(lives)
    proved["oracle"] += 1
