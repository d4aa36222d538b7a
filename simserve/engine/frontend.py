"""FrontEnd: a server's work around its scheduler: receiving and tokenizing requests, streaming tokens."""

from dataclasses import dataclass
from heapq import heapreplace
from typing import Any

import numpy as np
from mypy_extensions import i64
from numpy.typing import NDArray

from simserve.engine.recorder import Recorder
from simserve.integers import Heap, column
from simserve.units import MAX_PS


@dataclass(frozen=True)
class FrontEnd:
    """Times of a server's front end; each front-end process handles one request at a time."""

    receive_ps: int = 0
    """Time to receive a request: HTTP, parsing, chat template."""
    token_ps: int = 0
    """Tokenization time per prompt token."""
    respond_ps: int = 0
    """Time from the end of a step until the client has its token: detokenizing, streaming."""
    n_servers: int = 1
    bootstrap_ps: int = 0
    """Time until both sides of a hand-over know of each other, between the queue and the router; no server is busy."""


class FrontEndQueue:
    """First-come, first-served queue of requests at the front end."""

    def __init__(self, front_end: FrontEnd, recorder: Recorder) -> None:
        self._recorder = recorder
        self._receive_ps, self._token_ps = front_end.receive_ps, front_end.token_ps
        self._bootstrap_ps = front_end.bootstrap_ps
        self._free_at_ps = [0] * front_end.n_servers
        self._last_out_ps = 0

    def out_ps(self, row: int, sent_ps: int, prompt_tokens: int) -> int:
        """Return and record when a request, sent at sent_ps, reaches the router. Call in the order of sending."""
        work_ps = self._receive_ps + self._token_ps * prompt_tokens
        begin_ps = self._free_at_ps[0]
        if sent_ps > begin_ps:
            begin_ps = sent_ps
        out_ps = begin_ps + work_ps
        heapreplace(self._free_at_ps, out_ps)
        if out_ps > self._last_out_ps:
            self._last_out_ps = out_ps
        self._recorder.routed_ps[row] = self._last_out_ps + self._bootstrap_ps
        return self._last_out_ps + self._bootstrap_ps

    def all_out_ps(self, first_row: int, sent_ps: NDArray[Any], prompt_tokens: NDArray[Any]) -> NDArray[Any]:
        """Return and record when each of several rows reaches the router, as `out_ps` does, `(n_rows,)`.

        fast: with one server, row i leaves after all work up to it, from the last instant at which the queue was empty.
        With several, nearly always each row finds one free.
        """
        free_at_ps = self._free_at_ps
        longest_ps = self._receive_ps + self._token_ps * int(prompt_tokens.max())
        latest_ps = max(*free_at_ps, int(sent_ps.max())) + len(sent_ps) * longest_ps + self._bootstrap_ps
        if latest_ps > MAX_PS:
            rows = enumerate(zip(sent_ps.tolist(), prompt_tokens.tolist(), strict=True), first_row)
            return np.array([self.out_ps(row, at_ps, n_tokens) for row, (at_ps, n_tokens) in rows], np.int64)
        left_ps = self._together(sent_ps, prompt_tokens)
        if left_ps is None:
            return self._one_by_one(first_row, sent_ps, prompt_tokens)
        # Each takes the server that is free first, so the latest ends are those of the servers.
        self._free_at_ps = np.sort(np.concatenate([free_at_ps, left_ps]))[-len(free_at_ps) :].tolist()
        out_ps = np.maximum(np.maximum.accumulate(left_ps), self._last_out_ps)
        self._last_out_ps = int(out_ps[-1])
        return self._recorded(first_row, out_ps)

    def _recorded(self, first_row: int, out_ps: NDArray[Any]) -> NDArray[Any]:
        """Return and record when rows reach the router, from when they leave the queue, `(n_rows,)`."""
        routed_ps = out_ps + self._bootstrap_ps
        self._recorder.columns["routed_ps"][first_row : first_row + len(out_ps)] = routed_ps
        return routed_ps

    def _one_by_one(self, first_row: int, sent_ps: NDArray[Any], prompt_tokens: NDArray[Any]) -> NDArray[Any]:
        """Return and record when each of several rows reaches the router, `(n_rows,)`."""
        free_at_ps, at_ps, works_ps = Heap(), column(sent_ps), column(self._receive_ps + self._token_ps * prompt_tokens)
        for server_ps in self._free_at_ps:
            free_at_ps.push(server_ps)
        last_ps: i64 = self._last_out_ps
        for i in range(i64(len(sent_ps))):
            done_ps = free_at_ps.least()
            if at_ps[i] > done_ps:
                done_ps = at_ps[i]
            done_ps += works_ps[i]
            free_at_ps.replace(done_ps)
            if done_ps > last_ps:
                last_ps = done_ps
            at_ps[i] = last_ps
        self._last_out_ps, self._free_at_ps = last_ps, [free_at_ps.pop() for _ in self._free_at_ps]
        return self._recorded(first_row, np.array(at_ps, np.int64))

    def _together(self, sent_ps: NDArray[Any], prompt_tokens: NDArray[Any]) -> NDArray[Any] | None:
        """Return when the work on each of several rows ends, `(n_rows,)`; None: it needs a look at one by one."""
        free_at_ps, n_servers = self._free_at_ps, len(self._free_at_ps)
        work_ps: NDArray[Any] = self._receive_ps + self._token_ps * prompt_tokens
        if n_servers == 1:
            done_ps: NDArray[Any] = work_ps.cumsum()
            return done_ps + np.maximum(np.maximum.accumulate(sent_ps - done_ps + work_ps), free_at_ps[0])
        # Work on row i and all later ones ends after it was sent; what else does is in its way.
        done_ps = sent_ps + work_ps
        ends_ps = np.sort(np.concatenate([free_at_ps, done_ps]))
        n_busy = n_servers + np.arange(len(sent_ps)) - np.searchsorted(ends_ps, sent_ps, side="right")
        return done_ps if n_busy.max() < n_servers and work_ps.min() > 0 else None
