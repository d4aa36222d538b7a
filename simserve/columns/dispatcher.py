"""Dispatcher: admits requests and sends them to replicas, and computed prompts to the replicas that decode them."""

from __future__ import annotations

from typing import Any

from mypy_extensions import i64

from simserve.columns.arrivals import NextRows
from simserve.columns.batch import BatchColumns
from simserve.columns.entrance import Entrance
from simserve.columns.handover import Handover
from simserve.columns.live import ASKS, ENDED, MIGRATES, WAITS, Live
from simserve.columns.turns import UnitTurns
from simserve.engine.checks import broke, raised
from simserve.engine.cluster import Cluster
from simserve.integers import NEVER
from simserve.state.request import Request


class Dispatcher:
    """Stands before all replicas."""

    def __init__(
        self,
        cluster: Cluster,
        arrivals: NextRows,
        live: Live,
        entrance: Entrance,
        handover: Handover | None,
        turns: UnitTurns,
    ) -> None:
        self._turns = turns
        self.batches: list[BatchColumns] = []
        """Requests of all replicas, in the order of their ids."""
        self._cluster, self._arrivals, self._live, self._describe = cluster, arrivals, live, cluster.request_of
        self._entrance, self._handover, self._is_alone = entrance, handover, cluster.replicas[0].is_alone
        self._needs_requests = entrance.is_asked or (handover is not None and handover.is_asked)
        """Routers, policies or prefix caches look at requests."""
        self._admission: Any = cluster.admission  # Any: compiled code leaves what it answers to our own check
        self._deadlines, self._clock, self._refresher = cluster.deadlines, cluster.clock, cluster.refresher
        self._is_seen = cluster.sender.has_attempts or cluster.control is not None
        """Clients may send a request again: what becomes of one is recorded at once."""
        self._carried = cluster.losses.carried
        cluster.resend = self._route_again
        self.refresh_ps: i64 = NEVER
        """When routers see their replicas next as they then are, if views are delayed."""
        if cluster.refresher is not None:
            self.refresh_ps = cluster.refresher.refresh_ps
        self.odd_rows: list[tuple[int, int, str]] = []
        """Rows with an answer that was cut, and its tokens, and those that were refused, and why."""

    def add(self, batch: BatchColumns) -> None:
        """Add the requests of the next replica."""
        self.batches.append(batch)
        self._needs_requests = self._needs_requests or batch.needs_requests

    def refresh(self, at_ps: i64) -> None:
        """Show routers their replicas as they were at the last multiple of the delay, at an instant or before."""
        assert self._refresher is not None, "views are delayed"
        every_ps: i64 = self._refresher.refresh_ps
        last_ps = at_ps // every_ps * every_ps
        if last_ps >= self.refresh_ps:
            self._clock._now = last_ps
            self._refresher.take()
            self.refresh_ps = last_ps + every_ps

    def explain(self) -> None:
        """Record refusals and cuts in the order of sending."""
        for row, n_tokens, reason in self.odd_rows:
            self._explain(row, n_tokens, reason)
        self.odd_rows.clear()

    # -- new requests --------------------------------------------------------------------------------------------------

    def arrive(self, now_ps: i64) -> None:
        """Decide about a request that has come, and route it. Without a replica that is ready there is nothing to
        decide by: it waits."""
        arrivals, admission = self._arrivals, self._admission
        if admission is not None:
            if not self._cluster.fleet.gated:
                self._cluster.hold(arrivals.row, self._admit_again)
                return
            reason = self._why_not_admitted(arrivals.row, now_ps)
            if reason is not None:
                self._refuse(arrivals.row, reason, now_ps)
                arrivals.not_admitted(arrivals.row, reason, now_ps)
                return
        self._route(now_ps)

    def _why_not_admitted(self, row: int, now_ps: int) -> str | None:
        """Return why the admission policy refuses a request; None: it admits it. Raises PolicyError."""
        rows, views, policy = self._cluster.rows, self._cluster.fleet.gated, self._admission
        assert views is not None, "a policy decides"
        self._clock._now = now_ps
        request = Request(row, now_ps, rows.prompt_tokens[row], rows.max_tokens[row])
        try:
            reason = policy.decide(request, views, now_ps)
        except Exception as error:
            raise raised(policy, "decide", now_ps, error) from error
        if reason is not None and (not isinstance(reason, str) or not reason):
            raise broke(policy, "decide", now_ps, "must return None or a reason as text", reason)
        return reason

    def _route(self, now_ps: i64) -> None:
        """Route a request, and refuse it if its replica could never serve it."""
        arrivals = self._arrivals
        row, prompt_tokens, output_tokens = arrivals.row, arrivals.prompt_tokens, arrivals.output_tokens
        request = self._describe(row, now_ps) if self._needs_requests else None
        entry = self._entrance.pick(row, request, now_ps)
        if entry is None:
            self._cluster.hold(row, self._route_again)
            return
        reason, moved = entry.why_refused(prompt_tokens), self._carried.get(row) if self._carried else None
        if reason is not None and moved is not None:
            self._cluster.losses.fail(row, 0, f"its replica was lost, and the new one refuses it: {reason}")
            arrivals.find_next()
            return
        if reason is not None:
            self._refuse(row, reason, now_ps)
            arrivals.refused(row, reason, now_ps)
            return
        most_tokens = entry.limit_tokens - prompt_tokens
        if arrivals.max_tokens < most_tokens:
            most_tokens = arrivals.max_tokens
        if output_tokens > most_tokens:
            output_tokens = most_tokens
            self._note(row, most_tokens, "")
        at = self._live.add(row, prompt_tokens, output_tokens, most_tokens)
        if moved is not None:
            self._live.go_on(at, self._cluster.recorder, moved.left_ps)
        if request is not None:
            self._live.show(at, request)
            if request.max_tokens > entry.limit_tokens - prompt_tokens:
                request.max_tokens = entry.limit_tokens - prompt_tokens
        batch = self.batches[entry.place]
        batch.arrive(at, request)
        if self._deadlines is not None:
            self._deadlines.placed(row, at)
        if self._handover is None or entry.keeps or not batch.side.hands_over:
            self._turns.follow(entry.place, batch.queue(at, now_ps))
            return
        self._live.is_kept[at] = 0
        if not batch.side.asks_first:
            self._turns.follow(entry.place, batch.queue(at, now_ps))
            return
        self._live.joined_ps[at], self._live.phase[at] = now_ps, ASKS
        self.hand_over(self._handover, at, now_ps)

    def _refuse(self, row: i64, reason: str, now_ps: i64) -> None:
        """Note a request that is refused. The step run of a lone replica ends all the same where a request comes."""
        self._note(row, 0, reason)
        if self._is_alone:
            self.batches[0].cut(now_ps, False)
            self._turns.follow(0, False)

    def _note(self, row: int, n_tokens: int, reason: str) -> None:
        """Note a row with an answer that is cut, or that is refused for a reason."""
        if self._is_seen:
            self._explain(row, n_tokens, reason)
        else:
            self.odd_rows.append((row, n_tokens, reason))

    def _explain(self, row: int, n_tokens: int, reason: str) -> None:
        if reason:
            self._cluster.reject(row, reason)
        else:
            self._cluster.cut(row, n_tokens)

    # -- requests that wait for a replica to be ready ------------------------------------------------------------------

    def release(self, now_ps: i64) -> None:
        """Send what waited for a replica to be ready."""
        if self._handover is not None:
            for at in self._handover.take_held():
                self.hand_over(self._handover, at, now_ps)
        self._cluster.release_held(now_ps)

    def _admit_again(self, row: int, now_ps: int) -> None:
        """Decide about a request that has waited."""
        last, arrivals = self._arrivals.row, self._arrivals
        arrivals.recall(row)
        self.arrive(now_ps)
        arrivals.row = last

    def _route_again(self, row: int, now_ps: int) -> None:
        """Route a request that has waited, or was lost."""
        last, arrivals = self._arrivals.row, self._arrivals
        arrivals.recall(row)
        self._route(now_ps)
        arrivals.row = last

    # -- prompts of other replicas -------------------------------------------------------------------------------------

    def hand_over(self, handover: Handover, at: i64, now_ps: i64) -> None:
        """Route a request to the replica that will decode it: once its prompt is computed, or before."""
        live = self._live
        place = handover.pick(live.request(at) if self._needs_requests else None, now_ps)
        if live.phase[at] == MIGRATES and not self._goes_on(at, place, now_ps):
            return
        live.sender[at] = live.replica[at]
        live.receiver[at] = place
        live.there_ps[at] = 0
        if place < 0:
            handover.held.append(at)
            return
        if live.phase[at] == ASKS:
            handover.pushes[at] = None
        else:
            handover.recorder.hand_over(live.row[at], live.sender[at], place)
            live.replica[at] = place
        self._turns.follow(place, self.batches[place].fetch(at, now_ps))

    def _goes_on(self, at: i64, place: i64, now_ps: i64) -> bool:
        """Return whether a replica can use the KV of a request that left another one; else it goes to the gateway."""
        live, replicas, losses = self._live, self._cluster.replicas, self._cluster.losses
        sender, n_most = live.replica[at], int(live.prompt_tokens[at] + live.most_tokens[at])
        if place >= 0 and replicas[sender].has_common_kv and replicas[place].can_adopt(n_most):
            losses.go_on(int(live.row[at]), int(live.life[at]))
            return True
        lost = live.lost(at, live.prefilled_tokens[at], int(live.preempted_ps[at]))
        self._turns.follow(sender, self.batches[sender].give_back(at, now_ps))
        self.batches[sender].forget(at)
        self.batches[sender].records.flush()  # before it is recorded as failed
        losses.leave_behind(lost)
        return False

    def end_notices(self, handover: Handover, now_ps: i64) -> None:
        """Queue the requests that have blocks on their decode replicas, as their prefill replicas are told."""
        while handover.notice_at_ps == now_ps:
            at = handover.noticed()
            sender = self._live.sender[at]
            self._live.phase[at] = WAITS
            self._turns.follow(sender, self.batches[sender].queue(at, now_ps))

    def end_transfers(self, place: i64, now_ps: i64) -> None:
        """Let a decode replica have the keys and values that arrive, and prefill replicas the blocks that held them."""
        batch = self.batches[place]
        at = batch.side.arrived(now_ps)
        while at >= 0:
            if self._live.phase[at] == ENDED:
                batch.let_go(at, now_ps)
            else:
                sender = self._live.sender[at]
                self._turns.follow(sender, self.batches[sender].give_back(at, now_ps))
            at = batch.side.arrived(now_ps)
        self._turns.follow(place, batch.wake(now_ps))
