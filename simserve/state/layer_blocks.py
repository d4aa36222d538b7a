"""LayerBlocks: the KV blocks of a request where layers differ in what they keep."""

from dataclasses import dataclass
from typing import Any

from simserve.catalog.layers import LayerGroup


@dataclass(frozen=True)
class LayerBlocks:
    """Blocks by group of layers, all from one pool (vLLM, v1/core/single_type_kv_cache_manager.py).

    All layers that attend take blocks for the same tokens. Those with a window free a block as soon as no later token
    attends any of it.
    """

    block_size: int
    n_growing: int = 1
    """Blocks that all layers together take for the same block_size tokens."""
    windows: tuple[tuple[LayerGroup, int], ...] = ()
    """Groups with a window or chunk that a request can fill, and how many of the n_growing blocks are theirs. States
    that a prefix cache keeps come last."""
    n_states: int = 0
    """Blocks of a request's other states, whatever its length; those of a draft model included."""
    most_chunk: int | None = None
    """Most tokens that a step adds to a request; None: whole prompts."""
    draft: "LayerBlocks | None" = None
    """Blocks that the layers of a draft model take besides, perhaps for another number of tokens: one of the two is a
    multiple of the other."""

    @property
    def is_plain(self) -> bool:
        """Whether a block holds all that a request keeps of block_size tokens."""
        return self.n_growing == 1 and not self.windows and not self.n_states and self.draft is None

    @property
    def id_tokens(self) -> int:
        """Tokens of a block with a content id: those of the smallest blocks."""
        return self.block_size if self.draft is None else min(self.block_size, self.draft.block_size)

    @property
    def common_tokens(self) -> int:
        """Least number of tokens that fills whole blocks of all layers."""
        return self.block_size if self.draft is None else max(self.block_size, self.draft.block_size)

    @property
    def all_windows(self) -> list[tuple[LayerGroup, int, int]]:
        """Groups with a window, their blocks for the same tokens, and the tokens of a block: attention of the model and
        of its draft, then states."""
        windows = [(*window, self.block_size) for window in self.windows]
        if self.draft is not None:
            windows += [(*window, self.draft.block_size) for window in self.draft.windows]
        return sorted(windows, key=lambda window: not window[0].attends)

    @property
    def kinds(self) -> list[tuple[LayerGroup | None, int]]:
        """The group of each block that layers take for the same tokens, and its tokens; None for layers without a
        window, which come last."""
        kinds: list[tuple[LayerGroup | None, int]] = [
            (group, size) for group, n_parts, size in self.all_windows for _ in range(n_parts)
        ]
        kinds += [(None, self.block_size)] * self.n_whole
        return kinds if self.draft is None else kinds + [(None, self.draft.block_size)] * self.draft.n_whole

    def filled(self, n_tokens: Any) -> Any:
        """Return the blocks that n_tokens of a request lie in, those that windows have freed included. A number, or an
        array."""
        n_blocks = self.n_growing * -(-n_tokens // self.block_size)
        return n_blocks if self.draft is None else n_blocks + self.draft.filled(n_tokens)

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

    def tokens_to_fill(self, n_blocks: int) -> int:
        """Return the fewest tokens, in whole blocks with an id, that fill n_blocks if no window frees any of them."""
        n_tokens = self.tokens_in(n_blocks)
        return n_tokens if self.filled(n_tokens) >= n_blocks else n_tokens + self.id_tokens

    def held(self, n_tokens: Any) -> Any:
        """Return the blocks of a request between steps, with n_tokens computed; 0 for none. A number, or an array."""
        return self.filled(n_tokens) + self.n_states * (n_tokens > 0) - self.dropped(n_tokens)

    def dropped(self, n_tokens: Any) -> Any:
        """Return the blocks that windows have freed, of a request with n_tokens computed. A number, or an array."""
        n_blocks = 0
        for group, n_parts in self.windows:
            n_blocks += n_parts * (group.first_kept(n_tokens) // self.block_size)
        return n_blocks if self.draft is None else n_blocks + self.draft.dropped(n_tokens)

    def begun(self, n_tokens: int, n_next: int) -> int:
        """Return the blocks that a step of n_next tokens takes after n_tokens computed."""
        n_blocks: int = self.filled(n_tokens + n_next) - self.filled(n_tokens)
        return n_blocks + (0 if n_tokens else self.n_states)

    def most(self, n_tokens: int, n_found: int = 0) -> int:
        """Return the most blocks that a request of n_tokens ever takes besides those of its hit, of n_found tokens,
        however its prompt is cut into steps."""
        size, n_blocks = self.block_size, -(-n_tokens // self.block_size) - n_found // self.block_size
        n_most = self.n_whole * n_blocks + self.n_states
        for group, n_parts in self.windows:
            n_behind = n_found // size - group.first_kept(n_found) // size
            n_most += n_parts * min(n_blocks, self._most_kept(group) - n_behind)
        return n_most if self.draft is None else n_most + self.draft.most(n_tokens, n_found)

    @property
    def n_whole(self) -> int:
        """Blocks that layers without a window take for the same block_size tokens."""
        return self.n_growing - sum(n_parts for _, n_parts in self.windows)

    def longest(self, n_blocks: int) -> int:
        """Return the tokens of the longest request that n_blocks hold at all times."""
        low, high = 0, 1 << 40  # in blocks of tokens
        while low < high:
            middle = (low + high + 1) // 2
            if self.most(middle * self.id_tokens) <= n_blocks:
                low = middle
            else:
                high = middle - 1
        return low * self.id_tokens

    def _most_kept(self, group: LayerGroup) -> int:
        """Return the most blocks of tokens that a window and the tokens of a step lie in."""
        if self.most_chunk is None:
            return 1 << 62
        window = group.window or 0
        if group.kind == "chunked":
            return -(-(window + self.most_chunk) // self.block_size) + (window % self.block_size > 0)
        return -(-(window - 1 + self.most_chunk) // self.block_size) + 1
