"""NextRows: rows of the load as they reach the router, known in advance or sent by clients that wait for answers."""

from __future__ import annotations

import numpy as np
from mypy_extensions import i64
from numpy.typing import NDArray

from simserve.engine.cluster import Cluster
from simserve.engine.senders import LOOK_AHEAD
from simserve.engine.session_sender import SessionSender
from simserve.integers import NEVER, column, vec


class NextRows:
    """The next rows, in order. Of this class, they come when clients send them, whatever happens to others."""

    def __init__(self, cluster: Cluster, drain_limit_ps: int | None) -> None:
        self._cluster, self._drain_limit_ps = cluster, drain_limit_ps
        self.end_ps: i64 = NEVER - 1
        """End of the run, as far as it is known."""
        self.at_ps: i64 = NEVER
        """When the next row reaches the router; NEVER if none is known to."""
        self.are_more = True
        """There are rows that `load` finds."""
        self.row: i64 = 0
        """The row that was taken last, and ..."""
        self.prompt_tokens: i64 = 0
        self.output_tokens: i64 = 0
        self.max_tokens: i64 = 0
        """... its lengths."""

    def load(self) -> None:
        """Find the next rows, if those found before are used up."""

    def take(self) -> bool:
        """Take the next row; return whether it reaches the router now."""
        return False

    def recall(self, row: i64) -> None:
        """Take a row that has waited at the dispatcher."""
        rows, n_sent = self._cluster.rows, self._cluster.losses.n_carried(row)
        self.row, self.prompt_tokens = row, rows.prompt_tokens[row] + n_sent
        self.output_tokens, self.max_tokens = rows.output_tokens[row] - n_sent, rows.max_tokens[row] - n_sent

    def find_next(self) -> None:
        """Find when the next row comes, as clients may have given up."""

    def answered(self, row: i64, now_ps: i64) -> None:
        """Note that a client has its last token."""

    def refused(self, row: i64, reason: str, now_ps: i64) -> None:
        """Note that a client is refused."""

    def not_admitted(self, row: i64, reason: str, now_ps: i64) -> None:
        """Note that the admission policy turns a client away."""


class Timed(NextRows):
    """Rows that come at times of their own."""

    def __init__(self, cluster: Cluster, drain_limit_ps: int | None) -> None:
        super().__init__(cluster, drain_limit_ps)
        self._next: i64 = 0
        self._out_ps: vec[i64] = vec[i64]()
        self._prompts: vec[i64] = vec[i64]()
        self._outputs: vec[i64] = vec[i64]()
        self._most: vec[i64] = vec[i64]()
        self.row, self.are_more = -1, len(cluster.rows) > 0
        self.load()

    def load(self) -> None:
        """Find the next rows, if those found before are used up."""
        if not self.are_more or self._next < len(self._out_ps):
            return
        sender, rows = self._cluster.trace_sender, self._cluster.rows
        ahead_ps = sender.look_ahead(sender.n_sent)
        ahead = slice(sender.n_sent, sender.n_sent + len(ahead_ps))
        self._out_ps, self._prompts = column(ahead_ps), column(rows.prompts[ahead])
        self._outputs, self._most = column(rows.outputs[ahead]), column(rows.most[ahead])
        sender.n_sent, self._next, self.at_ps = ahead.stop, 0, self._out_ps[0]
        self.are_more = ahead.stop < len(rows)
        if not self.are_more and self._drain_limit_ps is not None:
            self.end_ps = min(int(ahead_ps[-1]) + self._drain_limit_ps, NEVER - 1)

    def take(self) -> bool:
        """Take the next row; return whether it reaches the router now."""
        i = self._next
        self.row += 1
        self.prompt_tokens, self.output_tokens, self.max_tokens = self._prompts[i], self._outputs[i], self._most[i]
        self._next = i = i + 1
        self.at_ps = NEVER
        if i < len(self._out_ps):
            self.at_ps = self._out_ps[i]
        return True


class Routed(NextRows):
    """Rows of some replicas, which come at times of their own."""

    def __init__(
        self, cluster: Cluster, rows: NDArray[np.int64], out_ps: NDArray[np.int64], end_ps: int | None
    ) -> None:
        """out_ps: when each row of the load reaches the router. end_ps: end of the run, if its drain is limited."""
        super().__init__(cluster, None)
        self._all_rows, self._all_out_ps = rows, out_ps
        self._first = 0
        self._next: i64 = 0
        self._rows: vec[i64] = vec[i64]()
        self._out_ps: vec[i64] = vec[i64]()
        if end_ps is not None:
            self.end_ps = min(end_ps, NEVER - 1)
        self.are_more = len(rows) > 0
        self.load()

    @property
    def n_sent(self) -> int:
        """Rows that were taken."""
        return self._first - len(self._rows) + int(self._next)

    def load(self) -> None:
        """Find the next rows, if those found before are used up."""
        if not self.are_more or self._next < len(self._rows):
            return
        ahead = self._all_rows[self._first : self._first + LOOK_AHEAD]
        self._first += len(ahead)
        self._rows, self._out_ps, self._next = column(ahead), column(self._all_out_ps[ahead]), 0
        self.at_ps, self.are_more = self._out_ps[0], self._first < len(self._all_rows)

    def take(self) -> bool:
        """Take the next row; return whether it reaches the router now."""
        i = self._next
        self.recall(self._rows[i])
        self._next = i = i + 1
        self.at_ps = self._out_ps[i] if i < len(self._out_ps) else NEVER
        return True


class Clients(NextRows):
    """Rows of clients that wait for answers before they send the next."""

    def __init__(self, cluster: Cluster, drain_limit_ps: int | None, sender: SessionSender) -> None:
        super().__init__(cluster, drain_limit_ps)
        self._sender, self.are_more = sender, False
        cluster.drain_limit_ps = drain_limit_ps
        sender.start()
        self.find_next()

    def take(self) -> bool:
        """Take the next row; return whether it reaches the router now."""
        self._cluster.clock._now = self.at_ps
        row = self._sender.take()
        self.find_next()
        deadlines = self._sender.deadlines
        if row is None or (deadlines is not None and deadlines.has_gone(row)):
            return False
        self.recall(row)
        return True

    def answered(self, row: i64, now_ps: i64) -> None:
        """Let a client that has its last token go on."""
        self._cluster.clock._now = now_ps
        self._sender.on_answer(row, now_ps)
        self.find_next()

    def refused(self, row: i64, reason: str, now_ps: i64) -> None:
        """Let a client that is refused go on or end."""
        self._cluster.clock._now = now_ps
        self._sender.on_refusal(row, reason, now_ps)
        self.find_next()

    def not_admitted(self, row: i64, reason: str, now_ps: i64) -> None:
        """Let a client that the admission policy turns away go on or end."""
        self._cluster.clock._now = now_ps
        self._sender.on_not_admitted(row, reason, now_ps)
        self.find_next()

    def find_next(self) -> None:
        """Note when the next row comes, and whether the last one was sent."""
        next_ps, end_ps = self._sender.next_ps, self._cluster.end_ps
        self.at_ps = NEVER if next_ps is None else next_ps
        if end_ps is not None:
            self.end_ps = min(end_ps, NEVER - 1)
