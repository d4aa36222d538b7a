"""KV memory by layer group: the blocks and bytes that one request holds, as vLLM's hybrid manager counts them.

All groups take blocks from one pool. A block holds `block_size` tokens in `n_layers` layers of one kind, or the state
of one request in them; kinds with more layers take several blocks at a time (vLLM 0.12, kv_cache_utils.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simserve.catalog.specs import LayerGroup
from simserve.cost.ops import Shard
from simserve.state.layer_blocks import LayerBlocks

PADDED_BELOW = 1.5
"""Numbers of layers that differ by less than this factor are padded to the larger (vLLM, kv_cache_utils.py)."""

BLOCK_STEP = 16
"""Block sizes are multiples of this many tokens (vLLM, hybrid models: rounded up for the attention kernels)."""

STATE_WINDOW = 2
"""Window of states that a prefix cache keeps at the ends of blocks: a token needs the state after the one before."""


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
    blocks: LayerBlocks
    """Its blocks of one request."""


@dataclass(frozen=True)
class KvLayout:
    """The groups of a model in one pool of blocks, on one GPU."""

    parts: tuple[GroupMemory, ...]
    blocks: LayerBlocks
    """Blocks of one request in all groups."""
    n_layers: int
    """Layers in a block; layers of a kind that do not fill its last part are padding."""
    layer_bytes: float
    """Bytes of a block in each of its layers."""
    n_merged: int = 1
    """Blocks of the engine in one of these: all that layers take for the same tokens, where all keep all tokens."""

    @property
    def block_size(self) -> int:
        """Tokens of a block: the engine's, or more where a state needs a larger block."""
        return self.blocks.block_size

    @property
    def is_plain(self) -> bool:
        """Whether a block holds all that a request keeps of block_size tokens."""
        return not self.blocks.windows and not self.blocks.n_states

    @property
    def block_bytes(self) -> float:
        """Bytes of a block."""
        return self.n_layers * self.layer_bytes

    def blocks_by_group(self, n_tokens: int) -> tuple[int, ...]:
        """Return the most blocks that a request of n tokens ever holds, by group."""
        return tuple(part.blocks.most(n_tokens) for part in self.parts)

    def bytes_by_group(self, n_tokens: int) -> tuple[float, ...]:
        """Return the most bytes that a request of n tokens ever holds, by group, without padding layers."""

        def n_bytes(part: GroupMemory, n_blocks: int) -> float:
            if part.bytes_per_token:
                return n_blocks / part.blocks.n_growing * self.block_size * part.bytes_per_token
            return part.bytes_per_request * (n_blocks / part.n_parts if part.blocks.windows else 1)

        return tuple(map(n_bytes, self.parts, self.blocks_by_group(n_tokens)))

    def layers_of(self, n_in_groups: Sequence[int]) -> int:
        """Return the layers of a block on a pipeline stage with so many layers of each part."""
        return self.n_merged * max(-(-n // part.n_parts) for n, part in zip(n_in_groups, self.parts, strict=True))


def kv_layout(
    shard: Shard,
    block_size: int,
    most_chunk: int | None,
    max_model_len: int | None = None,
    n_states: int = 1,
    *,
    keeps_states: bool = False,
) -> KvLayout:
    """Return the layout of the model's groups in blocks, on one GPU.

    most_chunk: tokens that a step adds to a request at most; None: whole prompts. max_model_len: windows as long never
    free a block. n_states: states of a request in a layer, one for each token that a step verifies. keeps_states: a
    state is written at the end of each block, and left when the next one is (vLLM, mamba_cache_mode: all).
    """
    token_bytes, state_bytes = shard.layer_kv_bytes_per_token, shard.state_bytes
    kept = [group for group in shard.model.groups if group.kind != "none"]
    n_layers = _layers_per_block([group.n_layers for group in kept])
    if shard.model.n_state_layers and token_bytes:
        least = -(-state_bytes // token_bytes)  # a state fits a block of one layer
        block_size = max(block_size, int(-(-least // BLOCK_STEP)) * BLOCK_STEP)
    none = LayerBlocks(block_size, 0, most_chunk=most_chunk)

    def part_of(group: LayerGroup) -> GroupMemory:
        n_parts = -(-group.n_layers // n_layers)
        blocks = replace(none, n_growing=n_parts) if group.attends else replace(none, n_states=n_parts * n_states)
        if group.window is not None and (max_model_len is None or group.window < max_model_len):
            blocks = replace(blocks, windows=((group, n_parts),))
        if keeps_states and not group.attends:
            saved = (replace(group, window=STATE_WINDOW), n_parts)
            blocks = replace(none, n_growing=n_parts, n_states=n_parts * (n_states - 1), windows=(saved,))
        n_bytes = group.n_layers * (token_bytes if group.attends else state_bytes)
        return GroupMemory(group, n_bytes * group.attends, n_bytes * (not group.attends), n_parts, blocks)

    parts = tuple(map(part_of, kept))
    windows = [window for part in parts for window in part.blocks.windows]
    blocks = replace(
        none,
        n_growing=sum(part.blocks.n_growing for part in parts),
        n_states=sum(part.blocks.n_states for part in parts),
        windows=tuple(sorted(windows, key=lambda window: not window[0].attends)),
    )
    if blocks.windows or blocks.n_states:
        return KvLayout(parts, blocks, n_layers, block_size * token_bytes)
    n_merged = blocks.n_growing
    parts = tuple(replace(part, blocks=replace(part.blocks, n_growing=1)) for part in parts)
    blocks = replace(blocks, n_growing=1)
    return KvLayout(parts, blocks, n_merged * n_layers, block_size * token_bytes, n_merged)


def _layers_per_block(counts: list[int]) -> int:
    """Return the layers of a block: the fewest of any kind, or the most where the numbers are close."""
    least, most = min(counts), max(counts)
    return most if most < least * PADDED_BELOW else least
