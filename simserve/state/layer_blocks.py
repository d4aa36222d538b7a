"""LayerBlocks: the KV blocks of a request where layers differ in what they keep."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simserve.catalog.layers import LayerGroup

KEEP_ALL = LayerGroup("full", 1)
"""Layers that keep all tokens, however many these layers are."""

STATE_TOKENS = 1 << 31
"""Tokens that a state counts as where a policy counts tokens, and requests keep states alone: more than all running
requests may have."""

ANY_LENGTH = 1 << 40
"""More tokens than any request has: the longest one, where no layer keeps all of its tokens."""


@dataclass(frozen=True)
class KvGroup:
    """Layers that keep the same tokens of a request, and the blocks in which these lie."""

    tokens: int
    """Tokens of a block."""
    n_parts: int = 1
    """Blocks that the layers take for the same tokens; 0: they have none of their own."""
    layers: LayerGroup = KEEP_ALL
    """Layers with a window or chunk that a request can fill, states that a prefix cache keeps, or KEEP_ALL."""


@dataclass(frozen=True)
class LayerBlocks:
    """Blocks by group of layers, all from one pool (vLLM, v1/core/single_type_kv_cache_manager.py).

    All layers that attend take blocks for the same tokens. Those with a window free a block as soon as no later token
    attends any of it. Layers of a draft model may have blocks of another size: one of the two is a multiple of the
    other.
    """

    groups: tuple[KvGroup, ...]
    """Attention in windows comes first, then states that a prefix cache keeps, then layers that keep all tokens; the
    model before its draft."""
    n_states: int = 0
    """Blocks of a request's other states, whatever its length."""
    most_chunk: int | None = None
    """Most tokens that a step adds to a request; None: whole prompts."""

    def __post_init__(self) -> None:
        in_order = sorted(self.groups, key=lambda group: (group.layers.window is None, not group.layers.attends))
        object.__setattr__(self, "groups", tuple(in_order))

    @cached_property
    def windows(self) -> tuple[KvGroup, ...]:
        """Groups with a window."""
        return tuple(group for group in self.groups if group.layers.window is not None)

    @cached_property
    def n_by_tokens(self) -> dict[int, int]:
        """Blocks that all layers together take for the same tokens, by the tokens of a block."""
        n_by_tokens: Counter[int] = Counter()
        for group in self.groups:
            n_by_tokens[group.tokens] += group.n_parts
        return n_by_tokens

    @property
    def is_plain(self) -> bool:
        """Whether a block holds all that a request keeps of its tokens."""
        return sum(self.n_by_tokens.values()) == 1 and not self.windows and not self.n_states

    @property
    def grows(self) -> bool:
        """Whether tokens take blocks, rather than requests a state alone."""
        return any(self.n_by_tokens.values())

    @property
    def id_tokens(self) -> int:
        """Tokens of a block with a content id: those of the smallest blocks."""
        return min(self.n_by_tokens)

    @property
    def common_tokens(self) -> int:
        """Least number of tokens that fills whole blocks of all layers."""
        return max(self.n_by_tokens)

    def filled(self, n_tokens: Any) -> Any:
        """Return the blocks that n_tokens of a request lie in, those that windows have freed included. A number, or an
        array."""
        return sum(n_parts * -(-n_tokens // size) for size, n_parts in self.n_by_tokens.items())

    def tokens_in(self, n_blocks: int) -> int:
        """Return the most tokens, in whole blocks with an id, that n_blocks hold if no window frees any of them."""
        size, common = self.id_tokens, self.common_tokens
        n_common: int = self.filled(common)
        if not n_common:
            return n_blocks * size
        n_tokens = n_blocks // n_common * common
        while self.filled(n_tokens + size) <= n_blocks:
            n_tokens += size
        return n_tokens

    def room(self, n_blocks: int) -> int:
        """Return the tokens that requests may have in n_blocks: for one that has no block yet, one must be free."""
        return self.tokens_in(n_blocks) if self.grows else (n_blocks + 1) * STATE_TOKENS - 1

    def tokens_to_fill(self, n_blocks: int) -> int:
        """Return the fewest tokens, in whole blocks with an id, that fill n_blocks if no window frees any of them."""
        if not self.grows:
            return n_blocks * STATE_TOKENS
        n_tokens = self.tokens_in(n_blocks)
        return n_tokens if self.filled(n_tokens) >= n_blocks else n_tokens + self.id_tokens

    def held(self, n_tokens: Any) -> Any:
        """Return the blocks of a request between steps, with n_tokens computed; 0 for none. A number, or an array."""
        return self.filled(n_tokens) + self.n_states * (n_tokens > 0) - self.dropped(n_tokens)

    def dropped(self, n_tokens: Any) -> Any:
        """Return the blocks that windows have freed, of a request with n_tokens computed. A number, or an array."""
        return sum(group.n_parts * (group.layers.first_kept(n_tokens) // group.tokens) for group in self.windows)

    def begun(self, n_tokens: int, n_next: int) -> int:
        """Return the blocks that a step of n_next tokens takes after n_tokens computed."""
        n_blocks: int = self.filled(n_tokens + n_next) - self.filled(n_tokens)
        return n_blocks + (0 if n_tokens else self.n_states)

    def most(self, n_tokens: int, n_found: int = 0) -> int:
        """Return the most blocks that a request of n_tokens ever takes besides those of its hit, of n_found tokens,
        however its prompt is cut into steps."""
        n_most = self.n_states
        for group in self.groups:
            n_behind = n_found // group.tokens
            n_blocks = -(-n_tokens // group.tokens) - n_behind
            if group.layers.window is not None and self.most_chunk is not None:
                n_behind -= group.layers.first_kept(n_found) // group.tokens
                n_blocks = min(n_blocks, most_kept(group, self.most_chunk) - n_behind)
            n_most += group.n_parts * n_blocks
        return n_most

    def longest(self, n_blocks: int) -> int:
        """Return the tokens of the longest request that n_blocks hold at all times."""
        low, high = 0, ANY_LENGTH  # in blocks of tokens
        while low < high:
            middle = (low + high + 1) // 2
            if self.most(middle * self.id_tokens) <= n_blocks:
                low = middle
            else:
                high = middle - 1
        return low * self.id_tokens


def most_kept(group: KvGroup, most_chunk: int) -> int:
    """Return the most blocks of tokens that a window and the tokens of a step lie in."""
    window = group.layers.window or 0
    if group.layers.kind == "chunked":
        return -(-(window + most_chunk) // group.tokens) + (window % group.tokens > 0)
    return -(-(window - 1 + most_chunk) // group.tokens) + 1
