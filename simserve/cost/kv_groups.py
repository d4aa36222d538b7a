"""KV memory by layer group: the blocks and bytes that one request holds, as vLLM's hybrid manager counts them.

All groups take blocks from one pool. A block holds `block_size` tokens in `n_layers` layers of one kind, or the state
of one request in them; kinds with more layers take several blocks at a time (vLLM 0.12, kv_cache_utils.py).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simserve.catalog.layers import LayerGroup
from simserve.cost.shard import Shard
from simserve.state.layer_blocks import LayerBlocks

PADDED_BELOW = 1.5
"""Numbers of layers that differ by less than this factor are padded to the larger (vLLM, kv_cache_utils.py)."""

BLOCK_STEP = 16
"""Block sizes are multiples of this many tokens (vLLM, hybrid models: rounded up for the attention kernels)."""

STATE_WINDOW = 2
"""Window of states that a prefix cache keeps at the ends of blocks: a token needs the state after the one before."""


Spec = tuple[str, int | None, float]
"""Kind, window and size in a layer: layers that have these in common share blocks."""


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
    spec: Spec
    is_draft: bool = False
    """Whether the layers are those of a draft model."""


@dataclass(frozen=True)
class KvLayout:
    """The groups of a model and its draft in one pool of blocks, on one GPU."""

    parts: tuple[GroupMemory, ...]
    blocks: LayerBlocks
    """Blocks of one request in all groups."""
    n_layers: int
    """Layers in a block; layers of a kind that do not fill its last part are padding."""
    layer_bytes: float
    """Bytes of a block in each of its layers."""
    n_merged: int = 1
    """Blocks of the engine in one of these: all that layers take for the same tokens, where all keep all tokens."""
    draft_bytes: float = 0.0
    """Bytes of a draft's layers in a block, where these and the model's all keep the same tokens."""

    @property
    def block_size(self) -> int:
        """Tokens of the smallest blocks: the engine's, or more where a state needs a larger block."""
        return self.blocks.id_tokens

    @property
    def blocks_per_tokens(self) -> int | float:
        """Blocks that all layers take for the same block_size tokens; no whole number where some hold more tokens."""
        n_blocks: int = self.blocks.filled(self.blocks.common_tokens)
        n_times = self.blocks.common_tokens // self.blocks.id_tokens
        return max(1, n_blocks / n_times if n_blocks % n_times else n_blocks // n_times)

    @property
    def block_bytes(self) -> float:
        """Bytes of a block."""
        return self.n_layers * self.layer_bytes + self.draft_bytes

    def blocks_by_group(self, n_tokens: int) -> tuple[int, ...]:
        """Return the most blocks that a request of n tokens ever holds, by group."""
        return tuple(part.blocks.most(n_tokens) for part in self.parts)

    def bytes_by_group(self, n_tokens: int) -> tuple[float, ...]:
        """Return the most bytes that a request of n tokens ever holds, by group, without padding layers."""

        def n_bytes(part: GroupMemory, n_blocks: int) -> float:
            if part.bytes_per_token:
                return n_blocks / part.blocks.n_growing * part.blocks.block_size * part.bytes_per_token
            return part.bytes_per_request * (n_blocks / part.n_parts if part.blocks.windows else 1)

        return tuple(map(n_bytes, self.parts, self.blocks_by_group(n_tokens)))

    def stage_bytes(self, n_in_groups: Sequence[int]) -> float:
        """Return the bytes of a block on a pipeline stage with so many layers of each group of the model, and all of
        the draft."""
        on_stage: Counter[object] = Counter()
        in_all: Counter[object] = Counter()
        drafts = () if self.draft_bytes else (part for part in self.parts if part.is_draft)
        counts = *n_in_groups, *(part.group.n_layers for part in drafts)
        for n, part in zip(counts, self.parts, strict=False):
            on_stage[part.spec] += n
            in_all[part.spec] += part.group.n_layers
        n_each = self.n_layers // self.n_merged
        most = max(-(-n // -(-in_all[spec] // n_each)) for spec, n in on_stage.items())
        return self.n_merged * most * self.layer_bytes + self.draft_bytes


def kv_layout(
    shard: Shard,
    block_size: int,
    most_chunk: int | None,
    max_model_len: int | None = None,
    n_states: int = 1,
    *,
    keeps_states: bool = False,
    draft: Shard | None = None,
) -> KvLayout:
    """Return the layout of the model's groups in blocks, on one GPU, and of those of a draft.

    most_chunk: tokens that a step adds to a request at most; None: whole prompts. max_model_len: windows as long never
    free a block. n_states: states of a request in a layer, one for each token that a step verifies. keeps_states: a
    state is written at the end of each block, and left when the next one is (vLLM, mamba_cache_mode: all).

    Where all layers of both keep the same tokens, a block holds them all. Else layers of the draft join those of the
    model that keep the same tokens in as many bytes; others are groups of their own. Blocks have the size that the
    layers with the most bytes a token need; those of the other model hold several times as many tokens, or are padded
    where that is not a whole number (vLLM, UniformTypeKVCacheSpecs and unify_kv_cache_spec_page_size).
    """
    if draft is not None and _keep_alike((shard, draft), max_model_len):
        alone = kv_layout(shard, block_size, most_chunk, max_model_len, n_states)
        return _with_alike(alone, draft)
    shards = (shard,) if draft is None else (shard, draft)
    kept = [(each, group) for each in shards for group in each.model.groups if group.kind != "none"]
    attending = [each for each in shards if each.model.n_attention_layers] or [shard]
    token_bytes = max(each.layer_kv_bytes_per_token for each in attending)
    for each in (each for each in shards if each.model.n_state_layers):
        own_bytes = shard.layer_kv_bytes_per_token if each is attending[0] is shard else token_bytes
        least = -(-each.state_bytes // own_bytes)  # a state fits a block of one layer
        block_size = max(block_size, int(-(-least // BLOCK_STEP)) * BLOCK_STEP)
    counts: Counter[Spec] = Counter()
    for each, group in kept:
        counts[_spec(each, group)] += group.n_layers
    n_layers = _layers_per_block([*counts.values()])

    def blocks_of(each: Shard, group: LayerGroup, n_parts: int) -> LayerBlocks:
        ratio, rest = divmod(token_bytes, each.layer_kv_bytes_per_token)
        none = LayerBlocks(block_size * (1 if rest else max(1, int(ratio))), 0, most_chunk=most_chunk)
        blocks = replace(none, n_growing=n_parts) if group.attends else replace(none, n_states=n_parts * n_states)
        if group.window is not None and (max_model_len is None or group.window < max_model_len):
            blocks = replace(blocks, windows=((group, n_parts),))
        if keeps_states and not group.attends:
            saved = (replace(group, window=STATE_WINDOW), n_parts)
            blocks = replace(none, n_growing=n_parts, n_states=n_parts * (n_states - 1), windows=(saved,))
        return blocks

    parts, of_shard = [], dict[bool, list[LayerBlocks]]({False: [], True: []})
    before: Counter[Spec] = Counter()
    for each, group in kept:
        spec, n_parts = _spec(each, group), -(-group.n_layers // n_layers)
        n_bytes = group.n_layers * (each.layer_kv_bytes_per_token if group.attends else each.state_bytes)
        sizes = n_bytes * group.attends, n_bytes * (not group.attends)
        parts.append(GroupMemory(group, *sizes, n_parts, blocks_of(each, group, n_parts), spec, each is draft))
        n_more = -(-(before[spec] + group.n_layers) // n_layers) - -(-before[spec] // n_layers)
        of_shard[each is draft].append(blocks_of(each, group, n_more))
        before[spec] += group.n_layers
    blocks = _together(of_shard[False])
    if of_shard[True]:
        of_draft = _together(of_shard[True])
        n_all = blocks.n_states + of_draft.n_states
        has_blocks = of_draft.n_growing or of_draft.windows  # of its own: others are states or lie in the target's
        blocks = replace(blocks, n_states=n_all, draft=replace(of_draft, n_states=0) if has_blocks else None)
    if blocks.windows or blocks.n_states or blocks.draft is not None:
        return KvLayout(tuple(parts), blocks, n_layers, block_size * token_bytes)
    n_merged = blocks.n_growing
    parts = [replace(part, blocks=replace(part.blocks, n_growing=1)) for part in parts]
    blocks = replace(blocks, n_growing=1)
    return KvLayout(tuple(parts), blocks, n_merged * n_layers, block_size * token_bytes, n_merged)


def _spec(shard: Shard, group: LayerGroup) -> Spec:
    """Return what layers have in common that share blocks."""
    n_bytes = shard.layer_kv_bytes_per_token if group.attends else shard.state_bytes
    return ("full" if group.kind == "latent" else group.kind), group.window, n_bytes


def _together(groups: list[LayerBlocks]) -> LayerBlocks:
    """Return the blocks of all groups of a model."""
    windows = [window for each in groups for window in each.windows]
    return replace(
        groups[0],
        n_growing=sum(each.n_growing for each in groups),
        n_states=sum(each.n_states for each in groups),
        windows=tuple(sorted(windows, key=lambda window: not window[0].attends)),
    )


def _keep_alike(shards: tuple[Shard, Shard], max_model_len: int | None) -> bool:
    """Tell whether all layers of a model and its draft attend, and keep the same tokens."""
    kinds = set()
    for group in (group for shard in shards for group in shard.model.groups if group.kind != "none"):
        keeps_all = group.window is None or (max_model_len is not None and group.window >= max_model_len)
        kinds.add((group.attends, *((None, None) if keeps_all else (group.kind, group.window))))
    return len(kinds) == 1 and all(attends for attends, _, _ in kinds)


def _with_alike(alone: KvLayout, draft: Shard) -> KvLayout:
    """Add the layers of a draft that keep the same tokens as those of its model, in the same blocks."""
    token_bytes, blocks = draft.layer_kv_bytes_per_token, alone.blocks
    kept = [group for group in draft.model.groups if group.kind != "none"]
    of_groups = [
        GroupMemory(group, group.n_layers * token_bytes, 0.0, 1, alone.parts[0].blocks, _spec(draft, group), True)
        for group in kept
    ]
    if blocks.windows:  # they count keys, and take no blocks
        windows = tuple((group, 0) for group in kept)
        blocks = replace(blocks, draft=LayerBlocks(blocks.block_size, 0, windows, most_chunk=blocks.most_chunk))
    draft_bytes = alone.block_size * draft.kv_bytes_per_token
    return replace(alone, parts=(*alone.parts, *of_groups), blocks=blocks, draft_bytes=draft_bytes)


def _layers_per_block(counts: list[int]) -> int:
    """Return the layers of a block: the fewest of any kind, or the most where the numbers are close."""
    least, most = min(counts), max(counts)
    return most if most < least * PADDED_BELOW else least
