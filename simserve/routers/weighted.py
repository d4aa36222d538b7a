"""Route to the replica with the highest weighted sum of scores: few requests, free blocks, prefix hit, session."""

from collections.abc import Sequence
from operator import add
from random import Random
from typing import Annotated, Literal

from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from simserve.routers.base import STRICT, Router, place_of
from simserve.state.request import Request
from simserve.state.sent_prompts import OwnSends, SentPrompts
from simserve.state.view import LoadView

Weight = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


@dataclass(config=STRICT)
class Weighted(Router):
    """Weighted sum of scores between 0 and 1; the highest wins, on a tie the fewest requests, then the first.

    Source: Gateway API inference extension (queue-, kv-cache-utilization- and prefix-cache-scorer, max-score-picker),
    with the weights of its guides; llm-d's active-request- and session-affinity-scorer.
    """

    queue: Weight = 2.0
    """Weight of the score of waiting requests: 1 for the fewest, 0 for the most, linear in between; 1 if all are
    equal."""
    outstanding: Weight = 0.0
    """Weight of the score of outstanding requests, waiting or running, computed as that of `queue`."""
    kv: Weight = 2.0
    """Weight of the share of KV blocks that are free."""
    prefix: Weight = 3.0
    """Weight of the share of the prompt that `index` finds."""
    session: Weight = 0.0
    """Weight of the score of the session: 1 for the replica of its last request, else 0."""
    index: Literal["exact", "own_sends"] = "own_sends"
    """`exact`: cache contents, as engines publish them block by block; `own_sends`: prompts that the router sent."""
    index_tokens: PositiveInt | None = None
    """[tokens] Prompts that `own_sends` remembers per replica; null: as many tokens as the replica's KV blocks hold."""

    def __post_init__(self) -> None:
        if not any((self.queue, self.outstanding, self.kv, self.prefix, self.session)):
            raise ValueError("a weight must be more than 0, got none; give queue, outstanding, kv, prefix or session")
        if self.index == "exact" and self.index_tokens is not None:
            raise ValueError(f"index_tokens is for index: own_sends, got {self.index_tokens}; leave it out")

    @property
    def needs_sessions(self) -> bool:
        """The session score has a weight."""
        return self.session > 0

    def begin(self, stream: Random) -> None:
        """Start without sent prompts and sessions."""
        self._sent = OwnSends(self.index_tokens)
        self._last: dict[str, int] = {}

    def pick(self, request: Request, views: Sequence[LoadView]) -> LoadView:
        """Return the replica with the highest score."""
        loads = [view.n_outstanding for view in views]
        scores = self._scores_of_load(views, loads)
        sent: Sequence[SentPrompts] = ()
        index: Sequence[LoadView | SentPrompts] = ()
        if self.prefix and any(request.chains.values()):  # without ids no index finds anything
            index = views if self.index == "exact" else (sent := self._sent.of(views))
        by_token = self.prefix / request.prompt_tokens
        for place, known in enumerate(index):
            scores[place] += by_token * known.found_tokens(request)
        last = self._last.get(request.session) if self.session else None
        last_place = None if last is None else place_of(last, views)
        if last_place is not None:
            scores[last_place] += self.session
        best = _highest(scores, loads)
        if sent:
            sent[best].add(request)
        if self.session and request.session:
            self._last[request.session] = views[best].id
        return views[best]

    def _scores_of_load(self, views: Sequence[LoadView], loads: list[int]) -> list[float]:
        """Return the scores of requests and free blocks."""
        scores = _fewest(loads, self.outstanding)
        if self.queue:
            scores = list(map(add, scores, _fewest([view.n_waiting for view in views], self.queue)))
        if self.kv:
            for place, view in enumerate(views):
                scores[place] += self.kv * (1.0 - view.held_blocks() / view.total_blocks)
        return scores


def _fewest(numbers: list[int], weight: float) -> list[float]:
    """Return scores: the full weight for the smallest count, 0 for the largest."""
    most = max(numbers)
    spread = most - min(numbers)
    each, base = (weight / spread, 0.0) if spread else (0.0, weight)
    return [base + each * (most - number) for number in numbers]


def _highest(scores: list[float], loads: list[int]) -> int:
    """Return the replica with the highest score; on a tie the fewest requests, then the first."""
    highest = max(scores)
    best = scores.index(highest)
    if scores.count(highest) == 1:
        return best
    tied = [place for place, score in enumerate(scores) if score == highest]
    return min(tied, key=lambda place: loads[place])
