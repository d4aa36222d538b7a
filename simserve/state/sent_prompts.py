"""SentPrompts: what a router remembers of the prompts that it sent to one replica, where nobody tells it more."""

from collections import OrderedDict

from simserve.state.request import Request
from simserve.state.view import LoadView


class SentPrompts:
    """Ids of whole blocks of prompts, as many as given; those not sent for longest are forgotten first.

    It knows nothing of answers, nor of what the replica computed or gave up meanwhile.

    Invariant: of each chain it holds a beginning, for of a prompt the first block is touched last.
    """

    __slots__ = ("_block_tokens", "_ids", "_most_ids")

    def __init__(self, block_tokens: int, most_ids: int) -> None:
        self._block_tokens = block_tokens
        self._most_ids = most_ids
        self._ids: OrderedDict[int, None] = OrderedDict()
        """The next to be forgotten first."""

    @classmethod
    def of(cls, view: LoadView, most_tokens: int | None) -> "SentPrompts":
        """With nothing in it; as large as the replica's KV cache unless said. It stays empty without prefix cache."""
        if view.block_tokens is None:
            return cls(1, 0)
        n_tokens = view.total_blocks * view.block_size if most_tokens is None else most_tokens
        return cls(view.block_tokens, n_tokens // view.block_tokens)

    def __len__(self) -> int:
        """Ids that it holds."""
        return len(self._ids)

    def found_tokens(self, request: Request) -> int:
        """Tokens from the beginning of its prompt that were sent before. O(log n); changes nothing."""
        ids = self._ids
        low, high = 0, self._n_ids(request)
        while low < high:  # fast: of a chain it holds a beginning; the test against plain lists holds it equal
            middle = (low + high) // 2
            if request.chain[middle] in ids:
                low = middle + 1
            else:
                high = middle
        return low * self._block_tokens

    def add(self, request: Request) -> None:
        """Its prompt is sent there. O(blocks of the prompt)."""
        ids, n_ids = self._ids, self._n_ids(request)
        for block in reversed(request.chain[:n_ids]) if n_ids else ():
            ids[block] = None
            ids.move_to_end(block)
        while len(ids) > self._most_ids:
            ids.popitem(last=False)

    def _n_ids(self, request: Request) -> int:
        """Whole blocks of the prompt that have an id; ids may go on into the answer, which no router knows.

        Of a prompt that is longer than all it holds, the beginning.
        """
        if not self._most_ids:
            return 0
        return min(request.prompt_tokens // self._block_tokens, len(request.chain), self._most_ids)
