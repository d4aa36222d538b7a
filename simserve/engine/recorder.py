"""Recorder: writes down what happened, a row a request, a row a stretch, a row a span; nothing a token."""

from array import array
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from simserve.engine.stretch import Stretch
from simserve.state.request import Request

BLOCKED_BY: Mapping[str | None, int] = MappingProxyType({None: 0, "seats": 1, "blocks": 2, "budget": 3})
"""What kept the head of the queue out, as recorded."""

STATUS = ("unfinished", "finished", "rejected", "timed_out")
"""How a request ended; its place in this tuple is what is recorded."""

NEVER = -1
"""In the columns of instants here: it never came. Outside of the engine that is NaN, and null in a file."""

STRETCH_COLUMNS = (
    "n_steps",
    "start_ps",
    "first_ps",
    "growth_ps",
    "prefill_tokens",
    "prefill_pairs",
    "decode_requests",
    "kv_tokens",
    "kv_blocks_used",
    "kv_blocks_reserved",
    "queue_len",
    "blocked_by",
)
SPAN_COLUMNS = ("request_id", "first_step", "last_step", "join_ps")

_TIME_COLUMNS = ("scheduled_ps", "first_token_ps", "finish_ps")
_COUNT_COLUMNS = ("preempted_ps", "n_preemptions", "n_recomputed_tokens", "status", "status_reason")


class Recorder:
    """Columns of a run. Row i of a request column is row i of the trace.

    fast: typed arrays written through memoryviews hold a million requests in 8 bytes a cell, and become numpy
    columns without a copy.
    """

    def __init__(self, n_requests: int, n_replicas: int) -> None:
        self.n_finished = 0
        self.n_rejected = 0
        self.reasons: list[str] = [""]
        self._stretches = [array("q") for _ in range(n_replicas)]
        self._spans = [array("q") for _ in range(n_replicas)]
        self.columns: dict[str, NDArray[np.int64]] = {}
        self.grow(n_requests)

    def grow(self, n_requests: int) -> None:
        """Make room for n_requests rows."""
        fills = dict.fromkeys((*_TIME_COLUMNS, "replica"), NEVER) | dict.fromkeys(_COUNT_COLUMNS, 0)
        for name, fill in fills.items():
            column = np.full(n_requests, fill, np.int64)
            old = self.columns.get(name)
            if old is not None:
                column[: len(old)] = old
            self.columns[name] = column
        views = {name: column.data for name, column in self.columns.items()}
        self._scheduled, self._first_token, self._finish = (views[name] for name in _TIME_COLUMNS)
        self._preempted, self._n_preemptions, self._n_recomputed, self._status, self._reason = (
            views[name] for name in _COUNT_COLUMNS
        )
        self._replica = views["replica"]

    def stretch(self, replica: int, stretch: Stretch) -> None:
        """The steps of a stretch are done."""
        self._stretches[replica].extend(
            (
                stretch.n_steps,
                stretch.start_ps,
                stretch.first_ps,
                stretch.growth_ps,
                stretch.n_prefill_tokens,
                stretch.n_prefill_pairs,
                stretch.n_decoding,
                stretch.kv_tokens,
                stretch.used_blocks,
                stretch.reserved_blocks,
                stretch.queue_len,
                stretch.blocked_by,
            )
        )

    def span(self, replica: int, request: Request, step: int) -> None:
        """A request has had a token at the end of a prefill and in each decode step since, up to `step` excluded."""
        self._spans[replica].extend((request.row, request.join_step, step - 1, request.joined_ps))

    def finish(self, replica: int, request: Request, at_ps: int) -> None:
        """The client has all its tokens."""
        self.n_finished += 1
        self.progress(replica, request)
        self._finish[request.row] = at_ps
        self._status[request.row] = 1

    def progress(self, replica: int, request: Request) -> None:
        """What a request has come to so far."""
        row = request.row
        self._replica[row] = replica
        if request.scheduled_ps is not None:
            self._scheduled[row] = request.scheduled_ps
        if request.first_token_ps is not None:
            self._first_token[row] = request.first_token_ps
        if request.n_preemptions:
            self._preempted[row] = request.preempted_ps
            self._n_preemptions[row] = request.n_preemptions
            self._n_recomputed[row] = request.n_recomputed_tokens

    def reject(self, row: int, reason: str) -> None:
        """A request that can never run."""
        self.n_rejected += 1
        self._status[row] = 2
        self._reason[row] = self._code(reason)

    def explain(self, row: int, reason: str) -> None:
        """Why a request did not finish, or finished otherwise than asked."""
        self._reason[row] = self._code(reason)

    def _code(self, reason: str) -> int:
        if reason not in self.reasons:
            self.reasons.append(reason)
        return self.reasons.index(reason)

    def stretches(self, replica: int) -> NDArray[np.int64]:
        """The stretches of a replica in order, `(n_stretches, len(STRETCH_COLUMNS))`."""
        return np.frombuffer(self._stretches[replica], np.int64).reshape(-1, len(STRETCH_COLUMNS))

    def spans(self, replica: int) -> NDArray[np.int64]:
        """The spans of a replica in the order in which they ended, `(n_spans, len(SPAN_COLUMNS))`."""
        return np.frombuffer(self._spans[replica], np.int64).reshape(-1, len(SPAN_COLUMNS))
