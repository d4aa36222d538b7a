"""Leaving: requests in columns of which the clients have given up; Members: ranks that join, drain and fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mypy_extensions import i64

from simserve.columns.batch import BatchColumns
from simserve.columns.handover import Handover
from simserve.columns.live import ASKS, ENDED, LOST, MOVES
from simserve.columns.records import Records
from simserve.columns.replica import ReplicaColumns
from simserve.columns.turns import UnitTurns
from simserve.engine.losses import LostLife
from simserve.engine.offered import OfferedRows
from simserve.engine.replica import Replica
from simserve.engine.slowness import Window


class Leaving:
    """Drops requests of clients that have given up; each is found at its place."""

    def __init__(
        self,
        rows: OfferedRows,
        records: Records,
        batches: Sequence[BatchColumns],
        handover: Handover | None,
        turns: UnitTurns,
    ) -> None:
        self._rows, self._records, self._live, self._batches = rows, records, records.live, batches
        self._handover, self._turns = handover, turns

    def abandon(self, row: int, where: int, now_ps: int) -> tuple[int | None, int]:
        """Drop a request, unless a step or a transfer of it is in flight; return when to try again, None: it is gone,
        and the tokens stored for it."""
        if self._has_ended(row, where):
            return None, self.stored_tokens(row, where)
        batch = self._batches[self._live.replica[where]]
        step_run = batch.in_flight.step_run
        if step_run is not None:
            self._turns.follow(batch.id, batch.wake(now_ps))
            if step_run.end_ps > now_ps:
                return int(step_run.end_ps), 0
            self._turns.commit(batch.id, now_ps)
        n_stored = self.stored_tokens(row, where)
        return None if self._has_ended(row, where) else self._drop(batch, where, now_ps), n_stored

    def stored_tokens(self, row: int, where: int) -> int:
        """Return the tokens stored for a request."""
        if self._has_ended(row, where):
            rows, padding_tokens = self._rows, self._records.padding_tokens.get(row, 0)
            return padding_tokens + rows.prompt_tokens[row] + rows.output_tokens[row] - 1
        return self._batches[self._live.replica[where]].stored_tokens(where)

    def _has_ended(self, row: int, place: i64) -> bool:
        """Return whether a request has its whole answer, or is lost."""
        return self._live.row[place] != row or self._live.phase[place] in (ENDED, LOST)

    def _drop(self, batch: BatchColumns, place: i64, now_ps: int) -> int | None:
        """Drop a request with no step in flight. Return None, or when to try again."""
        live, side = self._live, batch.side
        read_ps = batch.stop_reading(place)
        if read_ps >= 0:
            return int(read_ps)
        if live.phase[place] == ASKS:
            self._withdraw(batch, place, now_ps)
            return None
        if self._handover is not None and self._handover.forget(place):
            self._turns.follow(batch.id, batch.give_back(place, now_ps))
            self._close_moved(batch, place)
            return None
        if side.holds(place):
            at_ps = side.arrives_at(place)
            if at_ps >= 0:
                return int(at_ps)
            if side.take_here(place):
                batch.free_ahead(place, int(now_ps))
                self._turns.follow(batch.id, batch.wake(now_ps))
            else:
                self._turns.follow(batch.id, batch.withdraw(place, now_ps))
                if not live.is_kept[place]:
                    sender = live.sender[place]
                    self._turns.follow(sender, self._batches[sender].give_back(place, now_ps))
            self._close_moved(batch, place)
            return None
        self._turns.follow(batch.id, batch.abandon(place, now_ps))
        return None

    def _close_moved(self, batch: BatchColumns, place: i64) -> None:
        """Forget a request between two replicas, with its first token if it has one."""
        if self._live.phase[place] == MOVES:
            self._live.join_step[place] = batch.cohort.step
            self._records.span(place, batch.cohort.step)
        batch.forget(place)

    def _withdraw(self, batch: BatchColumns, place: i64, now_ps: int) -> None:
        """Drop a request that waits for blocks on a decode replica, before its prompt is computed."""
        live, handover = self._live, self._handover
        assert handover is not None, "it waits for blocks elsewhere"
        batch.count_out()
        self._turns.follow(batch.id, batch.drains and batch.wake(now_ps))
        if handover.forget(place):
            batch.forget(place)
            return
        receiver = self._batches[live.receiver[place]]
        del handover.pushes[place]
        if handover.forget_notice(place):
            batch.close(place)
            live.phase[place] = ENDED
            receiver.side.expect(place, now_ps + handover.notice_ps)
            return
        self._turns.follow(receiver.id, receiver.withdraw(place, now_ps))
        batch.forget(place)


class Members:
    """Serves the ranks of a fleet; see `Ranks`."""

    def __init__(
        self,
        records: Records,
        replicas: Sequence[ReplicaColumns],
        handover: Handover | None,
        order: Callable[[], None],
        turns: UnitTurns,
    ) -> None:
        """order: makes room for the last member."""
        self._records, self._live, self._replicas, self._handover = records, records.live, replicas, handover
        self._order, self._turns = order, turns

    def order(self, ranks: Sequence[Replica]) -> None:
        """Make room for the ranks of a member."""
        self._order()

    def n_held(self) -> int:
        """Return how many computed prompts wait for a decode replica to be ready."""
        return 0 if self._handover is None else len(self._handover.held)

    def is_empty(self, rank: Replica) -> bool:
        """Return whether a rank has no requests, and neither its step nor its blocks are in use."""
        is_stepping = rank.in_flight.step_run is not None
        return not rank.load.n_outstanding and not self._batch(rank.id).running.n_away and not is_stepping

    def drain(self, rank: Replica, on_empty: Callable[[int], None], now_ps: int) -> None:
        """Call on_empty with instants at which a rank may have nothing left to do."""
        replica = self._replicas[rank.id]
        replica.let_drain(on_empty)
        self._turns.follow(rank.id, replica.batch.wake(now_ps))

    def freeze(self, rank: Replica, now_ps: int) -> None:
        """Let a rank end the step in flight, and begin no other."""
        self._turns.follow(rank.id, self._batch(rank.id).wake(now_ps))
        self._turns.freeze(rank.id)
        step_run = rank.in_flight.step_run
        self._replicas[rank.id].frozen_ps = now_ps if step_run is None else step_run.end_ps

    def slow(self, rank: Replica, window: Window) -> None:
        """Let a rank take longer for the steps that begin in a window, which begins now."""
        self._replicas[rank.id].slow(window)
        self._turns.follow(rank.id, False)

    def fail(self, rank: Replica, now_ps: int, departs: Callable[[int], bool] | None) -> list[LostLife]:
        """Lose all that a rank has, and what is on its way to or from it; return what has no answer. departs: says of a
        row whether it goes on elsewhere with its keys and values."""
        lost, handover = list[LostLife](), self._handover
        if handover is not None:
            lost = self._lose_pushes(handover, rank.id, now_ps) + self._lose_transfers(handover, rank.id, now_ps)
        fetched = handover is not None and rank.id in handover.fetching
        return lost + self._lose_all(self._replicas[rank.id], now_ps, departs if fetched else None)

    def _batch(self, place: i64) -> BatchColumns:
        return self._replicas[place].batch

    def _lose_pushes(self, handover: Handover, rank: int, now_ps: int) -> list[LostLife]:
        """Lose the requests that a rank prefills or will decode, and what others hold for them."""
        live, lost = self._live, list[LostLife]()
        if handover.is_staged:
            handover.send_staged(now_ps, len(self._replicas))
        for place in list(handover.pushes):
            sender, receiver = int(live.sender[place]), int(live.receiver[place])
            if rank not in (sender, receiver):
                continue
            del handover.pushes[place]
            handover.forget_notice(place)
            other, batch = self._batch(receiver), self._batch(sender)
            if other.side.awaits(place):
                self._turns.follow(receiver, other.withdraw(place, now_ps))
            elif sender == rank:
                other.free_ahead(place, now_ps)
                self._turns.follow(receiver, other.wake(now_ps))
            if live.phase[place] == ASKS:
                batch.count_out()
                lost.append(live.lost(place, 0, now_ps))
                batch.forget(place)
                self._turns.follow(sender, batch.drains and batch.wake(now_ps))
            elif sender != rank:
                lost.append(live.lost(place, 0, now_ps))
                lost[-1].n_stored = batch.lose(place, now_ps)
                self._turns.follow(sender, batch.wake(now_ps))
        return lost

    def _lose_transfers(self, handover: Handover, rank: int, now_ps: int) -> list[LostLife]:
        """Lose the requests between a rank that fails and others, and what these hold for them."""
        live, places = self._live, handover.lose_from(rank)
        for receiver, side in handover.fetching.items():
            batch = self._batch(receiver)
            if receiver == rank:
                lost, held = side.lose_all()
                for place in sorted(held, key=lambda each: (live.joined_ps[each], live.row[each])):
                    sender = live.sender[place]
                    self._turns.follow(sender, self._batch(sender).give_back(place, now_ps))
                places += lost
                continue
            coming, fetched = side.coming_from(rank), side.fetched_from(rank)
            for place in coming:
                self._turns.follow(receiver, batch.withdraw(place, now_ps))
            for place in fetched:
                batch.free_ahead(place, now_ps)
            if fetched:
                self._turns.follow(receiver, batch.wake(now_ps))
            places += [*coming, *fetched]
        return [self._lose_moved(place, rank, now_ps) for place in places]

    def _lose_moved(self, place: i64, rank: int, now_ps: int) -> LostLife:
        """Lose a request between two replicas, of which this one fails."""
        live, batch, at = self._live, self._batch(rank), int(self._live.replica[place])
        lost = live.lost(place, batch.stored_tokens(place), now_ps)
        if live.phase[place] == MOVES:
            live.join_step[place], live.replica[place] = batch.cohort.step, rank
            self._records.span(place, batch.cohort.step)
            live.replica[place] = at
        self._batch(at).forget(place)
        return lost

    def _lose_all(self, replica: ReplicaColumns, now_ps: int, departs: Callable[[int], bool] | None) -> list[LostLife]:
        """Lose the step in flight, all blocks and all requests of a rank; return these without an answer."""
        replica.stop(now_ps)
        self._turns.halt(replica.place)
        departing = list[int]()
        if departs is not None and self._handover is not None:
            departing = [place for place in replica.batch.decoding() if departs(int(self._live.row[place]))]
            self._handover.held += departing
        lost = replica.batch.lose_all(min(now_ps, int(replica.frozen_ps)), departing)
        if replica.tier is not None:
            replica.tier.fail()
        self._records.flush()  # before they are recorded as failed, or sent again
        return lost
