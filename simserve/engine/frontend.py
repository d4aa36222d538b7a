"""FrontEnd: what a server does around its scheduler: take requests in, tokenize them, and send tokens out."""

from dataclasses import dataclass
from heapq import heapreplace

from simserve.engine.recorder import Recorder


@dataclass(frozen=True)
class FrontEnd:
    """The work of a server's front end; each takes in one request at a time."""

    receive_ps: int = 0
    """Taking in a request: HTTP, parsing, the chat template."""
    token_ps: int = 0
    """Tokenizing, per token of the prompt."""
    respond_ps: int = 0
    """From the end of a step until the client has its token: detokenizing, streaming."""
    n_servers: int = 1


class FrontEndQueue:
    """The queue of requests that wait to be taken in: they come out in the order in which they were sent."""

    def __init__(self, front_end: FrontEnd, recorder: Recorder) -> None:
        self._recorder = recorder
        self._receive_ps, self._token_ps = front_end.receive_ps, front_end.token_ps
        self._free_at_ps = [0] * front_end.n_servers
        self._last_out_ps = 0

    def out_ps(self, row: int, sent_ps: int, prompt_tokens: int) -> int:
        """When the next request, sent then, is through; noted down. To be asked in the order of sending."""
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
