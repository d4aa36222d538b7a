"""Lifecycle: how requests leave a replica before their end, and how the replica itself does, between its steps."""

from collections.abc import Callable

from simserve.engine.recorder import FINISHED
from simserve.engine.replica import Replica
from simserve.state.request import DECODE, DONE, Request


def step_end_ps(replica: Replica, now_ps: int) -> int | None:
    """Return the end of the step in flight, cutting the step run there; None: no step is in flight."""
    step_run = replica.in_flight.step_run
    if step_run is None:
        return None
    replica.stepping.wake(now_ps)
    if step_run.end_ps > now_ps:
        return step_run.end_ps
    replica.stepping.commit_now(now_ps)
    return None


def stored_tokens(replica: Replica, request: Request) -> int:
    """Return the tokens stored for a request, now or when it finished; padding included."""
    if request.phase is DONE or request in replica.cohort.lingering:
        return request.padding_tokens + request.prompt_tokens + replica.rows.output_tokens[request.row] - 1
    return replica.batch.stored_tokens(request)


# -- one request -----------------------------------------------------------------------------------------------------


def abandon(replica: Replica, request: Request, now_ps: int) -> int | None:
    """Drop a timed-out request, with no step in flight. In a padded batch it stays to the end, like a finished one.

    Return None, or when to try again.
    """
    batch, role = replica.batch, replica.role
    read = batch.memory.reading.get(request)
    if read is not None:
        if read.request is request:
            return read.end_ps  # a copy in flight ends first
        del batch.memory.reading[request]
    if role.holds(request):
        return role.abandon(request, now_ps)
    role.ended(request, now_ps)
    if batch.forget_coming(request):
        request.phase = DONE
    elif request.phase is DECODE and replica.scheduler.runs_to_completion:
        _linger(replica, request, now_ps)
        return None
    else:
        batch.abandon(request)
    replica.load.count_out()
    replica.stepping.wake(now_ps)
    return None


def _linger(replica: Replica, request: Request, now_ps: int) -> None:
    cohort, lingering = replica.cohort, replica.cohort.lingering
    if request in lingering:
        return
    replica.recorder.span(replica.id, request, cohort.step)
    cohort.forget(request)
    lingering.append(request)
    if replica.streams:  # whole answers count until they leave
        replica.load.count_out()
    if len(lingering) == cohort.n:
        replica.end_batch(now_ps)
    replica.stepping.wake(now_ps)


def drop(replica: Replica, request: Request, now_ps: int) -> int:
    """Drop a request without tokens that its decode replica has lost, even during a step; while that computes a part of
    its prompt, its blocks are in use. Return the tokens stored for it so far."""
    batch, in_flight, n_stored = replica.batch, replica.in_flight, stored_tokens(replica, request)
    step_run = in_flight.step_run
    replica.load.count_out()
    if batch.forget_coming(request):
        request.phase = DONE
    elif step_run is not None and any(request is each for each, _ in step_run.chunks):
        batch.withdraw(request)
        batch.n_away += 1
    else:
        in_flight.see(now_ps)
        n_used = batch.pool.used_blocks
        batch.abandon(request)
        in_flight.free(n_used - batch.pool.used_blocks)
    replica.stepping.wake(now_ps)
    return n_stored


def give_back(replica: Replica, request: Request, now_ps: int) -> None:
    """Free the blocks of a request after its transfer. A step run ends early, as others may wait for them."""
    batch, in_flight = replica.batch, replica.in_flight
    batch.n_away -= 1
    in_flight.see(now_ps)
    in_flight.free(batch.release(request, request.prefilled_tokens))
    step_run = in_flight.step_run
    if step_run is not None:
        if step_run.n_steps > 1:
            replica.stepping.wake(now_ps)
    elif batch.waiting or batch.prefilling or replica.on_empty is not None:
        replica.stepping.wake(now_ps)


def let_go(replica: Replica, request: Request, now_ps: int) -> None:
    """Free the slot and blocks taken ahead for a request that ends before it decodes here."""
    replica.in_flight.see(now_ps)
    replica.in_flight.free(replica.batch.memory.let_go(request))
    replica.batch.n_away -= 1
    replica.load.count_out()


# -- the replica -----------------------------------------------------------------------------------------------------


def is_empty(replica: Replica) -> bool:
    """Return whether it has no requests, and neither its step nor its blocks are in use."""
    return not replica.load.n_outstanding and not replica.batch.n_away and replica.in_flight.step_run is None


def drain(replica: Replica, on_empty: Callable[[int], None], now_ps: int) -> None:
    """Call on_empty with instants at which it may have nothing left to do."""
    replica.on_empty, replica.follows_plans = on_empty, True
    replica.stepping.wake(now_ps)


def note_empty(replica: Replica, now_ps: int) -> None:
    """Plan, and note there that it may have nothing left to do; for events after which it need not plan."""
    if replica.on_empty is not None:
        replica.stepping.wake(now_ps)


def stop(replica: Replica, now_ps: int) -> None:
    """End the run: commit the steps that are over and record the spans of unfinished requests."""
    _commit_done(replica, now_ps)
    replica.batch.show(2)
    _close_spans(replica)


def why_waiting(replica: Replica) -> str:
    """Explain a deadlock: what waits, and for what."""
    n_running, n_waiting = len(replica.batch.running), len(replica.batch.waiting)
    return (
        f"deadlock: replica {replica.id} is idle with {n_running} requests admitted and {n_waiting} waiting, "
        f"kept out by {replica.blocked_by or 'its scheduler'}; {replica.pool.free_blocks} KV blocks are free"
    )


def fail(replica: Replica, now_ps: int) -> list[tuple[Request, int]]:
    """Lose the step in flight, all blocks and all requests; return these without an answer, each with the tokens stored
    for it. Other replicas may lose requests with it; nothing is done here any more."""
    _commit_done(replica, now_ps)
    replica.in_flight.land()
    replica.stepping.halt()
    batch, cohort, status = replica.batch, replica.cohort, replica.recorder.status
    coming = batch.coming
    swapped = [*batch.swapped]
    there = [*batch.waiting, *(request for request, _ in coming), *swapped, *batch.running]
    _close_spans(replica)
    lost = [(each, stored_tokens(replica, each)) for each in there if status[each.row] != FINISHED]
    for request in swapped:
        batch.abandon(request)
    for request in batch.running:
        if request in cohort.lingering:
            cohort.leave(request)
        elif request.phase is DECODE:
            cohort.drop(request)
            cohort.pop_kept_blocks(request)
    for request in [*batch.waiting]:
        batch.waiting.remove(request)
    for requests in (batch.running, batch.prefilling, cohort.lingering, coming):
        requests.clear()
    for hooks in replica.hooks:
        hooks.fail()
    batch.pool.release(batch.pool.used_blocks, batch.pool.reserved_blocks)
    replica.load.n_outstanding = batch.n_away = 0
    for request in there:
        request.phase = DONE
    return lost


def _commit_done(replica: Replica, now_ps: int) -> None:
    """Commit the steps that are over, without the one in flight."""
    step_run = replica.in_flight.step_run
    if step_run is not None:
        step_run.cut(step_run.steps_done(now_ps))
        if step_run.n_steps:
            replica.commit(step_run, now_ps)


def _close_spans(replica: Replica) -> None:
    """Record the spans of unfinished requests."""
    batch, cohort = replica.batch, replica.cohort
    ended = [*cohort.lingering, *(() if batch.swap is None else batch.swap.returned)]
    for request in batch.running:
        if request.phase is DECODE and request not in ended:
            replica.recorder.span(replica.id, request, cohort.step)
