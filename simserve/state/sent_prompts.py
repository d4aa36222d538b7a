"""A router's own records of the prompts it sent."""

from collections import OrderedDict
from collections.abc import Sequence

from simserve.state.request import Request
from simserve.state.view import LoadView


class SentPrompts:
    """Ids of whole prompt blocks sent to one replica, up to a capacity; the least recently sent are forgotten first.

    It knows nothing of outputs, nor of what the replica has computed or evicted.

    Invariant: it holds a prefix of each chain, as the first block of a prompt is touched last.
    """

    __slots__ = ("_block_tokens", "_ids", "_most_ids")

    def __init__(self, block_tokens: int, most_ids: int) -> None:
        self._block_tokens = block_tokens
        self._most_ids = most_ids
        self._ids: OrderedDict[int, None] = OrderedDict()
        """Ids, the next to forget first."""

    @classmethod
    def of(cls, view: LoadView, most_tokens: int | None) -> "SentPrompts":
        """Return an empty record, by default as large as the KV cache. Without a prefix cache it stays empty."""
        if view.block_tokens is None:
            return cls(1, 0)
        n_tokens = view.total_blocks * view.block_size if most_tokens is None else most_tokens
        return cls(view.block_tokens, n_tokens // view.block_tokens)

    def __len__(self) -> int:
        """Return the number of ids held."""
        return len(self._ids)

    def found_tokens(self, request: Request) -> int:
        """Return the leading prompt tokens that were sent before. O(log n); changes nothing."""
        ids, n_ids = self._ids, self._n_ids(request)
        chain = request.chains[self._block_tokens] if n_ids else ()
        low, high = 0, n_ids
        while low < high:  # fast: a prefix of each chain is held; the test against plain lists checks it
            middle = (low + high) // 2
            if chain[middle] in ids:
                low = middle + 1
            else:
                high = middle
        return low * self._block_tokens

    def add(self, request: Request) -> None:
        """Record a prompt sent there. O(blocks of the prompt)."""
        ids, n_ids = self._ids, self._n_ids(request)
        for block in reversed(request.chains[self._block_tokens][:n_ids]) if n_ids else ():
            ids[block] = None
            ids.move_to_end(block)
        while len(ids) > self._most_ids:
            ids.popitem(last=False)

    def _n_ids(self, request: Request) -> int:
        """Return the number of whole prompt blocks with an id; ids may extend into the output, which no router knows.

        A prompt longer than the capacity counts only its beginning.
        """
        if not self._most_ids:
            return 0
        return min(request.prompt_tokens // self._block_tokens, len(request.chains[self._block_tokens]), self._most_ids)


class OwnSends:
    """A record of sent prompts per member: made when a router first sees the member, dropped when it is gone."""

    __slots__ = ("_ids", "_most_tokens", "_records")

    def __init__(self, most_tokens: int | None) -> None:
        self._most_tokens = most_tokens
        self._ids: list[int] = []
        self._records: list[SentPrompts] = []

    def of(self, views: Sequence[LoadView]) -> list[SentPrompts]:
        """Return the record of each member, in the order of the views."""
        ids = [view.id for view in views]
        if ids != self._ids:
            known = dict(zip(self._ids, self._records, strict=True))
            self._records = [
                known[view.id] if view.id in known else SentPrompts.of(view, self._most_tokens) for view in views
            ]
            self._ids = ids
        return self._records
