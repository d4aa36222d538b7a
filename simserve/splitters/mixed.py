"""Prefill remotely while neither side is overloaded; otherwise the other side computes prompt and answer."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from simserve.splitters.base import STRICT, Splitter, Where
from simserve.state.request import Request
from simserve.state.view import LoadView


@dataclass(config=STRICT)
class Mixed(Splitter):
    """Prefill remotely while both sides have room; use one side alone while only the other has none.

    Source: Splitwise, ISCA '24, section 4.3, and its simulator (MixedPoolScheduler): prompt machines are overloaded
    when their queue is long, token machines when their memory is full; then a machine of the other kind serves both.
    """

    keeps: ClassVar[bool] = True
    max_prefill_waiting: PositiveInt
    """Waiting requests at which a prefill replica has no room."""
    max_decode_kv_frac: float = Field(gt=0, le=1)
    """[share] Share of KV blocks, the prompt's included, above which a decode replica has no room."""

    def where(self, request: Request, prefill: Sequence[LoadView], local: Sequence[LoadView]) -> Where:
        """Return "apart" also when neither side has room, as moving the request would not help."""
        prefill_has_room = any(view.n_waiting < self.max_prefill_waiting for view in prefill)
        decode_has_room = any(self._has_room(view, request) for view in local)
        if prefill_has_room == decode_has_room:
            return "apart"
        return "prefill" if prefill_has_room else "local"

    def _has_room(self, view: LoadView, request: Request) -> bool:
        n_blocks = view.held_blocks() + view.blocks_for(request.prompt_tokens)
        return n_blocks <= self.max_decode_kv_frac * view.total_blocks
