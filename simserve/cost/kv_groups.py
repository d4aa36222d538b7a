"""KV memory by layer group: the blocks and bytes that one request holds, as vLLM's hybrid manager counts them.

All groups take blocks from one pool. A block holds `block_size` tokens in `n_layers` layers of one kind, or the state
of one request in them; kinds with more layers take several blocks at a time (vLLM 0.12, kv_cache_utils.py).
"""

from dataclasses import dataclass

from simserve.catalog.specs import LayerGroup
from simserve.cost.ops import Shard

PADDED_BELOW = 1.5
"""Numbers of layers that differ by less than this factor are padded to the larger (vLLM, kv_cache_utils.py)."""

BLOCK_STEP = 16
"""Block sizes are multiples of this many tokens (vLLM, hybrid models: rounded up for the attention kernels)."""


@dataclass(frozen=True)
class GroupMemory:
    """What the layers of a group keep of a request, on one GPU."""

    group: LayerGroup
    bytes_per_token: float
    """Bytes of a token in all its layers; 0 for states."""
    bytes_per_request: float
    """Bytes of a request's states in all its layers; 0 where tokens are kept."""
    n_parts: int
    """Blocks that cover all its layers for the same tokens."""


@dataclass(frozen=True)
class KvLayout:
    """The groups of a model in one pool of blocks, on one GPU."""

    parts: tuple[GroupMemory, ...]
    n_layers: int
    """Layers in a block; layers of a kind that do not fill its last part are padding."""
    block_size: int
    """Tokens of a block: the engine's, or more where a state needs a larger block."""
    block_bytes: float
    max_num_batched_tokens: int

    def blocks_by_group(self, n_tokens: int) -> tuple[int, ...]:
        """Return the most blocks that a request of n tokens holds, by group.

        A windowed layer holds the last window - 1 tokens and those of a step, a chunked one a chunk and those of a
        step; in one block more where windows or chunks begin inside of blocks.
        """
        return tuple(part.n_parts * self._blocks(part.group, n_tokens) for part in self.parts)

    def blocks(self, n_tokens: int) -> int:
        """Return the most blocks that a request of n tokens holds in all groups."""
        return sum(self.blocks_by_group(n_tokens))

    def bytes_by_group(self, n_tokens: int) -> tuple[float, ...]:
        """Return the most bytes that a request of n tokens holds, by group, without padding layers."""
        return tuple(
            part.bytes_per_request
            if part.group.kind == "state"
            else self._blocks(part.group, n_tokens) * self.block_size * part.bytes_per_token
            for part in self.parts
        )

    def _blocks(self, group: LayerGroup, n_tokens: int) -> int:
        window = group.window or 0
        if group.kind == "windowed":
            return self._whole(min(window - 1 + self.max_num_batched_tokens, n_tokens)) + 1
        if group.kind == "chunked":
            is_aligned = window % self.block_size == 0
            return self._whole(min(window + self.max_num_batched_tokens, n_tokens)) + (not is_aligned)
        return self._whole(n_tokens) if group.attends else int(group.kind == "state")

    def _whole(self, n_tokens: int) -> int:
        return -(-n_tokens // self.block_size)


def kv_layout(shard: Shard, block_size: int, max_num_batched_tokens: int) -> KvLayout:
    """Return the layout of the model's groups in blocks, on one GPU."""
    token_bytes, state_bytes = shard.layer_kv_bytes_per_token, shard.state_bytes
    kept = [group for group in shard.model.groups if group.kind != "none"]
    n_layers = _layers_per_block([group.n_layers for group in kept])
    if shard.model.n_state_layers and token_bytes:
        least = -(-state_bytes // token_bytes)  # a state fits a block of one layer
        block_size = max(block_size, int(-(-least // BLOCK_STEP)) * BLOCK_STEP)
    parts = tuple(
        GroupMemory(
            group,
            group.n_layers * token_bytes * group.attends,
            group.n_layers * state_bytes * (group.kind == "state"),
            -(-group.n_layers // n_layers),
        )
        for group in kept
    )
    block_bytes = n_layers * (block_size * token_bytes)
    return KvLayout(parts, n_layers, block_size, block_bytes, max_num_batched_tokens)


def _layers_per_block(counts: list[int]) -> int:
    """Return the layers of a block: the fewest of any kind, or the most where the numbers are close."""
    least, most = min(counts), max(counts)
    return most if most < least * PADDED_BELOW else least
