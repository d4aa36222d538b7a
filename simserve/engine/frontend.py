"""FrontEnd: a server's work around its scheduler: receiving and tokenizing requests, streaming tokens."""

from dataclasses import dataclass
from heapq import heapreplace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.engine.recorder import Recorder
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


class FrontEndQueue:
    """First-come, first-served queue of requests at the front end."""

    def __init__(self, front_end: FrontEnd, recorder: Recorder) -> None:
        self._recorder = recorder
        self._receive_ps, self._token_ps = front_end.receive_ps, front_end.token_ps
        self._free_at_ps = [0] * front_end.n_servers
        self._last_out_ps = 0

    def out_ps(self, row: int, sent_ps: int, prompt_tokens: int) -> int:
        """Return and record when a request, sent at sent_ps, leaves the queue. Call in the order of sending."""
        work_ps = self._receive_ps + self._token_ps * prompt_tokens
        begin_ps = self._free_at_ps[0]
        if sent_ps > begin_ps:
            begin_ps = sent_ps
        out_ps = begin_ps + work_ps
        heapreplace(self._free_at_ps, out_ps)
        if out_ps > self._last_out_ps:
            self._last_out_ps = out_ps
        self._recorder.routed_ps[row] = self._last_out_ps
        return self._last_out_ps

    def all_out_ps(self, first_row: int, sent_ps: NDArray[Any], prompt_tokens: NDArray[Any]) -> list[int]:
        """Return and record when each of several rows leaves the queue, as `out_ps` does, `(n_rows,)`.

        fast: with one server, row i leaves after all work up to it, from the last instant at which the queue was empty.
        """
        longest_ps = self._receive_ps + self._token_ps * int(prompt_tokens.max())
        latest_ps = max(self._free_at_ps[0], int(sent_ps.max())) + len(sent_ps) * longest_ps
        if len(self._free_at_ps) > 1 or latest_ps > MAX_PS:
            rows = zip(sent_ps.tolist(), prompt_tokens.tolist(), strict=True)
            return [self.out_ps(row, *each) for row, each in enumerate(rows, first_row)]
        work_ps = self._receive_ps + self._token_ps * prompt_tokens
        done_ps = work_ps.cumsum()
        begin_ps = np.maximum(np.maximum.accumulate(sent_ps - done_ps + work_ps), self._free_at_ps[0])
        out_ps = begin_ps + done_ps
        self._recorder.columns["routed_ps"][first_row : first_row + len(out_ps)] = out_ps
        result: list[int] = out_ps.tolist()
        self._free_at_ps = result[-1:]
        return result
