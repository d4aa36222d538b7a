"""Route to the replica with the smallest share of its KV cache in use."""

from collections.abc import Sequence

from pydantic.dataclasses import dataclass

from simserve.routers.base import STRICT, Router
from simserve.state.request import Request
from simserve.state.view import LoadView


@dataclass(config=STRICT)
class LeastKv(Router):
    """Smallest share of KV blocks held; fewest requests outstanding on a tie, then the first such replica."""

    def pick(self, request: Request, views: Sequence[LoadView]) -> LoadView:
        """Return the replica with the emptiest KV cache."""
        loads = [(view.held_blocks() / view.total_blocks, view.n_outstanding) for view in views]
        return views[loads.index(min(loads))]
