"""The replica whose prefix cache has most of the prompt, unless it is much busier than others."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, NonNegativeInt
from pydantic.dataclasses import dataclass

from simserve.routers.base import STRICT, Router
from simserve.state.request import Request
from simserve.state.view import LoadView


@dataclass(config=STRICT)
class PrefixAffinity(Router):
    """Go where most of the prompt is cached; without a worthwhile hit, and from busy replicas, to the least busy one.

    Sources: SGLang's router (cache-aware with a balance threshold), vLLM production stack (prefix-aware routing).
    """

    min_hit_frac: Annotated[float, Field(ge=0, le=1)] = 0.3
    """Share of the prompt from which on a hit decides."""
    max_imbalance: NonNegativeInt = 32
    """Requests that the chosen replica may have more than the least busy one."""

    def pick(self, request: Request, views: Sequence[LoadView]) -> int:
        """The most tokens found, then the fewest requests, then the first."""
        loads = [view.n_outstanding for view in views]
        least = min(loads)
        found_tokens = [
            view.found_tokens(request) if load <= least + self.max_imbalance else 0
            for view, load in zip(views, loads, strict=True)
        ]
        most_tokens = max(found_tokens)
        if most_tokens < max(self.min_hit_frac * request.prompt_tokens, 1):
            return loads.index(least)
        best = [index for index, n_tokens in enumerate(found_tokens) if n_tokens == most_tokens]
        return min(best, key=lambda index: loads[index])
