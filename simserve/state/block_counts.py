"""BlockCounts: the KV blocks of one request by its tokens, in machine integers; as `LayerBlocks` counts them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mypy_extensions import i64

from simserve.integers import column, vec
from simserve.state.layer_blocks import LayerBlocks, most_kept


class BlockCounts:
    """Blocks of layers that all keep all tokens."""

    n_states: i64 = 0

    def __init__(self, layers: LayerBlocks) -> None:
        self._layers = layers
        self.size: i64 = layers.id_tokens
        """Tokens of a block with a content id."""
        self.n_states = layers.n_states
        """Blocks of a request's states, whatever its length."""

    def filled(self, n_tokens: i64) -> i64:
        """Return the blocks that n_tokens lie in, those that windows have freed included."""
        return -(-n_tokens // self.size)

    def dropped(self, n_tokens: i64) -> i64:
        """Return the blocks that windows have freed with n_tokens computed."""
        return 0

    def held(self, n_tokens: i64) -> i64:
        """Return the blocks between steps, with n_tokens computed; 0 for none."""
        return -(-n_tokens // self.size)

    def begun(self, n_tokens: i64, n_next: i64) -> i64:
        """Return the blocks that a step of n_next tokens takes after n_tokens computed."""
        return -(-(n_tokens + n_next) // self.size) - -(-n_tokens // self.size)

    def most(self, n_tokens: i64, n_found: i64) -> i64:
        """Return the most blocks that a request of n_tokens ever takes besides those of its hit, of n_found tokens."""
        return -(-n_tokens // self.size) - n_found // self.size

    def tokens_in(self, n_blocks: i64) -> i64:
        """Return the most tokens, in whole blocks with an id, that n_blocks hold if no window frees any of them."""
        return n_blocks * self.size

    def tokens_to_fill(self, n_blocks: i64) -> i64:
        """Return the fewest tokens, in whole blocks with an id, that fill n_blocks if no window frees any of them."""
        return n_blocks * self.size


class GroupCounts(BlockCounts):
    """Blocks of layers that keep different tokens, by group."""

    def __init__(self, layers: LayerBlocks) -> None:
        super().__init__(layers)
        groups, windows = layers.groups, layers.windows
        self._n_groups: i64 = len(groups)
        self._n_windows: i64 = len(windows)
        self._tokens = _numbers([group.tokens for group in groups])
        self._parts = _numbers([group.n_parts for group in groups])
        self._windows = _numbers([group.layers.window or 0 for group in groups])
        """Tokens of windows and chunks, which come first; 0 for layers that keep all."""
        self._is_chunked = _numbers([group.layers.kind == "chunked" for group in groups])
        self._attends = _numbers([group.layers.attends for group in groups])
        most_chunk = layers.most_chunk
        kept = [most_kept(group, most_chunk) if most_chunk is not None else 0 for group in windows]
        self._most_kept = _numbers(kept)
        self._is_bounded = most_chunk is not None

    def filled(self, n_tokens: i64) -> i64:
        """Return the blocks that n_tokens lie in, those that windows have freed included."""
        n_blocks: i64 = 0
        for i in range(self._n_groups):
            n_blocks += self._parts[i] * -(-n_tokens // self._tokens[i])
        return n_blocks

    def first_kept(self, i: i64, n_tokens: i64) -> i64:
        """Return the first token that the one after n_tokens attends in a group with a window."""
        window = self._windows[i]
        if self._is_chunked[i]:
            return n_tokens // window * window
        return n_tokens - window + 1 if n_tokens >= window else 0

    def dropped(self, n_tokens: i64) -> i64:
        """Return the blocks that windows have freed with n_tokens computed."""
        n_blocks: i64 = 0
        for i in range(self._n_windows):
            n_blocks += self._parts[i] * (self.first_kept(i, n_tokens) // self._tokens[i])
        return n_blocks

    def held(self, n_tokens: i64) -> i64:
        """Return the blocks between steps, with n_tokens computed; 0 for none."""
        if n_tokens <= 0:
            return 0
        return self.filled(n_tokens) + self.n_states - self.dropped(n_tokens)

    def begun(self, n_tokens: i64, n_next: i64) -> i64:
        """Return the blocks that a step of n_next tokens takes after n_tokens computed."""
        n_blocks = self.filled(n_tokens + n_next) - self.filled(n_tokens)
        return n_blocks if n_tokens else n_blocks + self.n_states

    def most(self, n_tokens: i64, n_found: i64) -> i64:
        """Return the most blocks that a request of n_tokens ever takes besides those of its hit, of n_found tokens."""
        n_most = self.n_states
        for i in range(self._n_groups):
            n_behind = n_found // self._tokens[i]
            n_blocks = -(-n_tokens // self._tokens[i]) - n_behind
            if i < self._n_windows and self._is_bounded:
                n_kept = self._most_kept[i] - n_behind + self.first_kept(i, n_found) // self._tokens[i]
                if n_kept < n_blocks:
                    n_blocks = n_kept
            n_most += self._parts[i] * n_blocks
        return n_most

    def tokens_in(self, n_blocks: i64) -> i64:
        """Return the most tokens, in whole blocks with an id, that n_blocks hold if no window frees any of them."""
        return self._layers.room(n_blocks)

    def tokens_to_fill(self, n_blocks: i64) -> i64:
        """Return the fewest tokens, in whole blocks with an id, that fill n_blocks if no window frees any of them."""
        return self._layers.tokens_to_fill(n_blocks)

    # -- keys ----------------------------------------------------------------------------------------------------------

    def keys(self, i: i64, n_context: i64) -> i64:
        """Return the keys that the last of n_context tokens attends in a group with a window."""
        return n_context - self.first_kept(i, n_context - 1) if self._attends[i] else 0

    def reads_of(self, i: i64, chunks: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Return the query-key pairs of several prompts' chunks [first, end) in a group with a window, and the keys
        that they attend."""
        n_pairs: i64 = 0
        n_keys: i64 = 0
        for first, end in chunks:
            n_pairs += self._pairs(i, end) - self._pairs(i, first)
            n_keys += end - self.first_kept(i, first)
        return n_pairs, n_keys

    def _pairs(self, i: i64, n_tokens: i64) -> i64:
        """Return the query-key pairs of the first n_tokens."""
        most = self._windows[i]
        if self._is_chunked[i]:
            rest = n_tokens % most
            return n_tokens // most * (most * (most + 1) // 2) + rest * (rest + 1) // 2
        n_rising = n_tokens if n_tokens < most else most
        return n_rising * (n_rising + 1) // 2 + (n_tokens - n_rising) * most


def _numbers(values: Sequence[int]) -> vec[i64]:
    return column(np.array(values, np.int64))


def counts_of(layers: LayerBlocks) -> BlockCounts:
    """Return what counts the blocks of a request."""
    return BlockCounts(layers) if layers.is_plain else GroupCounts(layers)
