"""Leaving: requests in columns of which the clients have given up, as servers notice it between their steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mypy_extensions import i64

from simserve.columns.batch import BatchColumns
from simserve.columns.handover import Handover
from simserve.columns.live import ASKS, ENDED, LOST, MOVES
from simserve.columns.records import Records
from simserve.engine.offered import OfferedRows

Follow = Callable[[int, bool], None]
"""Called with a replica and whether it is idle and plans; otherwise its step run may have been cut."""


class Leaving:
    """Drops requests of clients that have given up; each is found at its place."""

    def __init__(
        self,
        rows: OfferedRows,
        records: Records,
        batches: Sequence[BatchColumns],
        handover: Handover | None,
        follow: Follow,
        commit: Callable[[int, int], None],
    ) -> None:
        """commit: commits the step run of a replica, which ends at this very instant."""
        self._rows, self._records, self._live, self._batches = rows, records, records.live, batches
        self._handover, self._follow, self._commit = handover, follow, commit

    def abandon(self, row: int, where: int, now_ps: int) -> tuple[int | None, int]:
        """Drop a request, unless a step or a transfer of it is in flight; return when to try again, None: it is gone,
        and the tokens stored for it."""
        if self._has_ended(row, where):
            return None, self.stored_tokens(row, where)
        batch = self._batches[self._live.replica[where]]
        step_run = batch.in_flight.step_run
        if step_run is not None:
            self._follow(batch.id, batch.wake(now_ps))
            if step_run.end_ps > now_ps:
                return int(step_run.end_ps), 0
            self._commit(batch.id, now_ps)
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
            self._follow(batch.id, batch.give_back(place, now_ps))
            self._close_moved(batch, place)
            return None
        if side.holds(place):
            at_ps = side.arrives_at(place)
            if at_ps >= 0:
                return int(at_ps)
            if side.take_here(place):
                batch.free_ahead(place, int(now_ps))
                self._follow(batch.id, batch.wake(now_ps))
            else:
                self._follow(batch.id, batch.withdraw(place, now_ps))
                if not live.is_kept[place]:
                    sender = live.sender[place]
                    self._follow(sender, self._batches[sender].give_back(place, now_ps))
            self._close_moved(batch, place)
            return None
        self._follow(batch.id, batch.abandon(place, now_ps))
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
        self._follow(batch.id, batch.drains and batch.wake(now_ps))
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
        self._follow(receiver.id, receiver.withdraw(place, now_ps))
        batch.forget(place)
