"""The replica with the highest sum of weighted scores: few requests, free blocks, a known prompt, a known session."""

from collections.abc import Sequence
from random import Random
from typing import Annotated, Literal

from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from simserve.routers.base import STRICT, Router
from simserve.state.request import Request
from simserve.state.sent_prompts import SentPrompts
from simserve.state.view import LoadView

Weight = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


@dataclass(config=STRICT)
class Weighted(Router):
    """Scores between 0 and 1, each by its weight; the highest sum, on a tie the fewest requests, then the first.

    Source: Gateway API inference extension (queue-, kv-cache-utilization- and prefix-cache-scorer, max-score-picker),
    with the weights of its guides, and llm-d's session-affinity-scorer.
    """

    outstanding: Weight = 2.0
    """1 for the fewest requests outstanding, 0 for the most, in between by their number; 1 where all have as many."""
    kv: Weight = 2.0
    """The share of KV blocks that are free."""
    prefix: Weight = 3.0
    """The share of the prompt that `index` finds."""
    session: Weight = 0.0
    """1 for the replica that had the session's last request, else 0."""
    index: Literal["exact", "own_sends"] = "own_sends"
    """What caches hold, as engines tell of every block at once; or only the prompts that it has sent there itself."""
    index_tokens: PositiveInt | None = None
    """Tokens of own_sends that it remembers of each replica; left out: as many as the replica's KV blocks hold."""

    def __post_init__(self) -> None:
        if not any((self.outstanding, self.kv, self.prefix, self.session)):
            raise ValueError("a weight must be more than 0, got none; give outstanding, kv, prefix or session")

    @property
    def needs_sessions(self) -> bool:
        """If they have a weight."""
        return self.session > 0

    def begin(self, stream: Random) -> None:
        """Nothing has been sent, and no session seen."""
        self._sent: list[SentPrompts] = []
        self._last: dict[str, int] = {}

    def pick(self, request: Request, views: Sequence[LoadView]) -> int:
        """The highest score."""
        loads = [view.n_outstanding for view in views]
        scores = self._scores(request, views, loads)
        highest = max(scores)
        best = [place for place, score in enumerate(scores) if score == highest]
        picked = best[0] if len(best) == 1 else min(best, key=lambda place: loads[place])
        if self._sent:
            self._sent[picked].add(request)
        if self.session and request.session:
            self._last[request.session] = picked
        return picked

    def _scores(self, request: Request, views: Sequence[LoadView], loads: list[int]) -> list[float]:
        scores = [0.0] * len(views)
        if self.outstanding:
            most = max(loads)
            spread = most - min(loads)
            scores = [self.outstanding * ((most - load) / spread if spread else 1.0) for load in loads]
        if self.kv:
            scores = [
                score + self.kv * (1.0 - view.held_blocks() / view.total_blocks)
                for score, view in zip(scores, views, strict=True)
            ]
        if self.prefix:
            by_token = self.prefix / request.prompt_tokens
            index = self._index(views)
            scores = [
                score + by_token * known.found_tokens(request) for score, known in zip(scores, index, strict=True)
            ]
        last = self._last.get(request.session) if self.session else None
        if last is not None:
            scores[last] += self.session
        return scores

    def _index(self, views: Sequence[LoadView]) -> Sequence[LoadView | SentPrompts]:
        """What knows of prompts."""
        if self.index == "exact":
            return views
        if not self._sent:
            self._sent = [SentPrompts.of(view, self.index_tokens) for view in views]
        return self._sent
