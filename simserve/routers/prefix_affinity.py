"""Route to the replica that has most of the prompt in its prefix cache, unless it is much busier than others."""

from collections.abc import Sequence
from random import Random
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from simserve.routers.base import STRICT, Router
from simserve.state.request import Request
from simserve.state.sent_prompts import OwnSends, SentPrompts, longest_found
from simserve.state.view import LoadView


@dataclass(config=STRICT)
class PrefixAffinity(Router):
    """Pick the longest cache hit; without a sufficient hit, or if that replica is too busy, pick the least busy one.

    Sources: SGLang's router (cache-aware with a balance threshold), vLLM production stack (prefix-aware routing).
    """

    min_hit_frac: Annotated[float, Field(ge=0, le=1)] = 0.3
    """[share] Minimum hit, as a share of the prompt, that decides."""
    max_imbalance: NonNegativeInt = 32
    """Outstanding requests by which the chosen replica may exceed the least busy one."""
    index: Literal["exact", "own_sends"] = "exact"
    """`exact`: cache contents, as engines publish them block by block; `own_sends`: prompts that the router sent."""
    index_tokens: PositiveInt | None = None
    """[tokens] Prompts that `own_sends` remembers per replica; null: as many tokens as the replica's KV blocks hold."""

    def __post_init__(self) -> None:
        if self.index == "exact" and self.index_tokens is not None:
            raise ValueError(f"index_tokens is for index: own_sends, got {self.index_tokens}; leave it out")

    def begin(self, stream: Random) -> None:
        """Start with empty records of sent prompts."""
        self._sent = OwnSends(self.index_tokens)

    def pick(self, request: Request, views: Sequence[LoadView]) -> LoadView:
        """Return the replica with the longest hit, then the fewest requests, then the first."""
        if self.index == "exact":
            return views[self._best(request, views, views)]
        sent = self._sent.of(views)
        place = self._best(request, views, sent)
        sent[place].add(request)
        return views[place]

    def _best(self, request: Request, views: Sequence[LoadView], index: Sequence[LoadView | SentPrompts]) -> int:
        least_tokens = max(self.min_hit_frac * request.prompt_tokens, 1)
        return longest_found(request, views, index, least_tokens, self.max_imbalance)
