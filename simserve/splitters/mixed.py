"""As long as neither side is overloaded; else the other side serves prompts and answers."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from simserve.splitters.base import STRICT, Splitter, Where
from simserve.state.request import Request
from simserve.state.view import LoadView


@dataclass(config=STRICT)
class Mixed(Splitter):
    """Apart while some replica of each side has room; one side alone while only the other has none.

    Source: Splitwise, ISCA '24, section 4.3, and its simulator (MixedPoolScheduler): prompt machines are overloaded
    when their queue is long, token machines when their memory is full; then a machine of the other kind serves both.
    """

    keeps: ClassVar[bool] = True
    max_prefill_waiting: PositiveInt
    """A prefill replica where so many wait has no room."""
    max_decode_kv_frac: float = Field(gt=0, le=1)
    """Nor has a decode replica of whose KV blocks more than this share would be taken with its prompt."""

    def where(self, request: Request, prefill: Sequence[LoadView], local: Sequence[LoadView]) -> Where:
        """Apart, too, when neither side has room: nobody is helped then."""
        prefill_has_room = min(view.n_waiting for view in prefill) < self.max_prefill_waiting
        decode_has_room = any(self._has_room(view, request) for view in local)
        if prefill_has_room == decode_has_room:
            return "apart"
        return "prefill" if prefill_has_room else "local"

    def _has_room(self, view: LoadView, request: Request) -> bool:
        n_blocks = view.held_blocks() - (-request.prompt_tokens // view.block_size)
        return n_blocks <= self.max_decode_kv_frac * view.total_blocks
