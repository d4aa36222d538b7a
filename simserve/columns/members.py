"""Members: ranks with requests in columns that join, drain and fail while the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mypy_extensions import i64

from simserve.columns.batch import BatchColumns
from simserve.columns.handover import Handover
from simserve.columns.leaving import Follow
from simserve.columns.live import ASKS, DECODES, LOST, MOVES
from simserve.columns.records import Records
from simserve.columns.replica import ReplicaColumns
from simserve.engine.fleet import LostLife
from simserve.engine.replica import Replica


class Members:
    """Serves the ranks of a fleet; see `Ranks`."""

    def __init__(
        self,
        records: Records,
        replicas: Sequence[ReplicaColumns],
        handover: Handover | None,
        order: Callable[[], None],
        halt: Callable[[int], None],
        follow: Follow,
    ) -> None:
        """order: makes room for the last member. halt: a rank neither ends its step nor begins another one."""
        self._records, self._live, self._replicas, self._handover = records, records.live, replicas, handover
        self._order, self._halt, self._follow = order, halt, follow

    def order(self, ranks: Sequence[Replica]) -> None:
        """Make room for the ranks of a member."""
        self._order()

    def is_empty(self, rank: Replica) -> bool:
        """Return whether a rank has no requests, and neither its step nor its blocks are in use."""
        is_stepping = rank.in_flight.step_run is not None
        return not rank.load.n_outstanding and not self._batch(rank.id).running.n_away and not is_stepping

    def drain(self, rank: Replica, on_empty: Callable[[int], None], now_ps: int) -> None:
        """Call on_empty with instants at which a rank may have nothing left to do."""
        replica = self._replicas[rank.id]
        replica.let_drain(on_empty)
        self._follow(rank.id, replica.batch.wake(now_ps))

    def fail(self, rank: Replica, now_ps: int) -> list[LostLife]:
        """Lose all that a rank has, and what is on its way to or from it; return what has no answer."""
        lost = list[LostLife]()
        if self._handover is not None:
            lost += self._lose_pushes(self._handover, rank.id, now_ps)
            lost += self._lose_transfers(self._handover, rank.id, now_ps)
        return lost + self._lose_all(self._replicas[rank.id], now_ps)

    def _batch(self, place: i64) -> BatchColumns:
        return self._replicas[place].batch

    def _lost(self, place: i64, n_stored: int) -> LostLife:
        live = self._live
        return LostLife(int(live.row[place]), int(live.life[place]), live.emitted_tokens[place] > 0, n_stored)

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
                self._follow(receiver, other.withdraw(place, now_ps))
            elif sender == rank:
                other.free_ahead(place, now_ps)
                self._follow(receiver, other.wake(now_ps))
            if live.phase[place] == ASKS:
                batch.count_out()
                lost.append(self._lost(place, 0))
                batch.forget(place)
                self._follow(sender, batch.drains and batch.wake(now_ps))
            elif sender != rank:
                each = self._lost(place, 0)
                each.n_stored = batch.lose(place, now_ps)
                lost.append(each)
                self._follow(sender, batch.wake(now_ps))
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
                    self._follow(sender, self._batch(sender).give_back(place, now_ps))
                places += lost
                continue
            coming, fetched = side.coming_from(rank), side.fetched_from(rank)
            for place in coming:
                self._follow(receiver, batch.withdraw(place, now_ps))
            for place in fetched:
                batch.free_ahead(place, now_ps)
            if fetched:
                self._follow(receiver, batch.wake(now_ps))
            places += [*coming, *fetched]
        return [self._lose_moved(place, rank) for place in places]

    def _lose_moved(self, place: i64, rank: int) -> LostLife:
        """Lose a request between two replicas, of which this one fails."""
        live, batch = self._live, self._batch(rank)
        at = int(live.replica[place])
        lost = self._lost(place, batch.stored_tokens(place))
        if live.phase[place] == MOVES:
            live.join_step[place], live.replica[place] = batch.cohort.step, rank
            self._records.span(place, batch.cohort.step)
            live.replica[place] = at
        self._batch(at).forget(place)
        return lost

    def _lose_all(self, replica: ReplicaColumns, now_ps: int) -> list[LostLife]:
        """Lose the step in flight, all blocks and all requests of a rank; return these without an answer."""
        replica.stop(now_ps)
        self._halt(replica.place)
        batch, live = replica.batch, self._live
        batch.in_flight.land()
        prompts, running, lingering = batch.prompts, batch.running.places(), batch.lingering
        swapped = [] if batch.swaps is None else list(batch.swaps.places)
        there = [*prompts.waiting.places(), *prompts.coming.places(), *swapped, *running]
        for place in running:
            if live.phase[place] == DECODES and place not in lingering and not batch.has_returned(place):
                self._records.span(place, batch.cohort.step)
        answered = lingering if batch.streams else []
        lost = [self._lost(place, batch.stored_tokens(place)) for place in there if place not in answered]
        for place in swapped:
            batch.remove(place)
        for place in running:
            if live.phase[place] == DECODES and place in lingering:
                batch.running.stop_decoding(place)
            elif live.phase[place] == DECODES:
                batch.running.drop(place)
            batch.running.leave(place)
        gone = [place for place in prompts.places_of_step() if live.phase[place] == LOST]
        prompts.clear()
        if replica.tier is not None:
            replica.tier.fail()
        batch.lingering = []
        batch.pool.release(batch.pool.used_blocks, batch.pool.reserved_blocks)
        for place in there:
            if place not in answered:
                batch.close(place)
        for place in (*there, *gone):
            live.remove(place)
        batch.count_none()
        return lost
