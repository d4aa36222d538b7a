"""KV memory by layer group: the blocks and bytes that one request holds, as vLLM's hybrid manager counts them.

All groups take blocks from one pool. A block holds `block_size` tokens in `n_layers` layers of one kind, or the state
of one request in them; kinds with more layers take several blocks at a time (vLLM 0.12, kv_cache_utils.py).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import lcm

from simserve.catalog.layers import LayerGroup
from simserve.cost.kv_layout import GroupMemory, KvLayout, Spec
from simserve.cost.shard import Shard
from simserve.state.layer_blocks import KEEP_ALL, KvGroup, LayerBlocks

PADDED_BELOW = 1.5
"""Numbers of layers that differ by less than this factor are padded to the larger (vLLM, kv_cache_utils.py)."""

BLOCK_STEP = 16
"""Block sizes are multiples of this many tokens (vLLM, hybrid models: rounded up for the attention kernels)."""

ENTRY_BLOCK = 256
"""Blocks of entries hold those of a multiple of so many tokens (vLLM, DeepSeek-V4)."""

STATE_CHUNK = 256
"""Tokens after which kernels have a state to keep, where no attention needs larger blocks (SGLang, configs/mamba.py;
Mamba-2's chunk_size)."""

STATE_WINDOW = 2
"""Window of states that a prefix cache keeps at the ends of blocks: a token needs the state after the one before."""


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
    layers with the most bytes a token need; others hold several times as many tokens, or are padded where that is no
    whole number, or no multiple of another (vLLM, UniformTypeKVCacheSpecs and unify_kv_cache_spec_page_size).
    """
    shard, draft = _verifying(shard, n_states), draft and _verifying(draft, n_states)
    if draft is not None and _keep_alike((shard, draft), max_model_len):
        return _with_alike(kv_layout(shard, block_size, most_chunk, max_model_len, n_states), draft)
    shards = (shard,) if draft is None else (shard, draft)
    token_bytes, block_size = _largest(shards, block_size, keeps_states=keeps_states)
    block_size, entry_tokens = _with_entries(shards, block_size)
    layer_bytes = block_size * token_bytes or max(each.state_bytes for each in shards)

    def blocks_of(group: LayerGroup, tokens: int) -> LayerBlocks:
        if group.attends:
            is_apart = max_model_len is None or group.heads is not None
            is_filled = group.window is not None and (is_apart or group.window < (max_model_len or 0))
            return LayerBlocks((KvGroup(tokens, 1, group if is_filled else KEEP_ALL),), 0, most_chunk)
        saved = KvGroup(tokens, 1, replace(group, window=STATE_WINDOW))
        return LayerBlocks((saved if keeps_states else KvGroup(tokens, 0),), n_states - keeps_states, most_chunk)

    parts = [
        GroupMemory(group, Spec.of(each, group), blocks_of(group, tokens), each is draft)
        for each, group, tokens in _in_blocks(shards, token_bytes, block_size, entry_tokens)
    ]
    n_layers = _layers_per_block(parts)
    blocks = _in_one_pool(parts, n_layers)
    layout = KvLayout(tuple(parts), blocks, n_layers, layer_bytes)
    return layout if blocks.windows or blocks.n_states else _merged(layout, block_size, shard.kv_bytes_per_token)


def _merged(layout: KvLayout, block_size: int, token_bytes: float) -> KvLayout:
    """Return blocks of all layers, where all keep all tokens; of several sizes, where these differ."""
    blocks = replace(layout.blocks, groups=(KvGroup(block_size),))
    if len({part.spec.layer_bytes for part in layout.parts}) > 1:
        parts = tuple(replace(part, blocks=blocks) for part in layout.parts)
        return KvLayout(parts, blocks, 1, block_size * token_bytes, is_joint=True)
    (n_merged,) = layout.blocks.n_by_tokens.values()
    return replace(layout, blocks=blocks, n_layers=n_merged * layout.n_layers, n_merged=n_merged)


def _in_blocks(
    shards: Sequence[Shard], token_bytes: float, block_size: int, entry_tokens: int
) -> Iterator[tuple[Shard, LayerGroup, int]]:
    """Yield the groups that keep something, with the tokens of a block: several times those of the largest layers,
    where blocks of all sizes divide each other."""
    ratios: set[int] = set()
    for each, group in ((shard, group) for shard in shards for group in shard.model.groups if group.n_keeping):
        if group.has_entries:
            yield each, group, entry_tokens
            continue
        own_bytes = each.of(group).layer_kv_bytes_per_token
        ratio, rest = divmod(token_bytes, own_bytes) if own_bytes else (1, 0)
        n_times = max(1, int(ratio))
        if rest or entry_tokens % (block_size * n_times) or any(n_times % n and n % n_times for n in ratios):
            n_times = 1
        ratios.add(n_times)
        yield each, group, block_size * n_times


def _verifying(shard: Shard, n_states: int) -> Shard:
    """Return a model with a state after each of so many tokens: its convolution keeps inputs of all (vLLM,
    mamba_utils.py: num_spec)."""
    state = shard.model.linear
    if state is None or "conv_size" not in state.sizes:
        return shard
    sizes = {**state.sizes, "conv_size": state.sizes["conv_size"] + n_states - 1}
    return replace(shard, model=replace(shard.model, linear=replace(state, sizes=sizes)))


def _largest(shards: Sequence[Shard], block_size: int, *, keeps_states: bool) -> tuple[float, int]:
    """Return the bytes of a token in the largest layers that attend, and the tokens of a block of these, which is at
    least as large as a state. Where none attends, a block is a state, and a token takes 0 bytes."""
    attending = [each for each in shards if each.model.n_attention_layers]
    if not attending:
        step = STATE_CHUNK if keeps_states else 1
        return 0.0, -(-block_size // step) * step
    largest = [max(own.layer_kv_bytes_per_token for own, _ in each.by_heads) for each in attending]
    token_bytes = max(largest)
    for each in (each for each in shards if each.model.n_state_layers):
        own_bytes = largest[0] if attending[0] is each is shards[0] else token_bytes
        least = -(-each.state_bytes // own_bytes)  # a state fits a block of one layer
        step = BLOCK_STEP * each.decode_context
        block_size = max(block_size, int(-(-least // step)) * step)
    return token_bytes, block_size


def _with_entries(shards: Sequence[Shard], block_size: int) -> tuple[int, int]:
    """Return the tokens of a block, more where one of entries has room for them, and those of that; 0 for none."""
    groups = [(each, group) for each in shards for group in each.model.groups if group.attends]
    entry_bytes = sum(group.n_keeping * each.token_bytes(group) for each, group in groups if group.has_entries)
    other_bytes = sum(group.n_keeping * each.token_bytes(group) for each, group in groups if not group.has_entries)
    if not entry_bytes:
        return block_size, 0
    tokens = lcm(ENTRY_BLOCK, block_size, *(group.ratio for _, group in groups))
    while tokens % (2 * block_size) == 0 and 2 * block_size * other_bytes <= tokens * entry_bytes:
        block_size *= 2
    while 2 * tokens * entry_bytes <= block_size * other_bytes:
        tokens *= 2
    return block_size, tokens


def _in_one_pool(parts: Sequence[GroupMemory], n_layers: int) -> LayerBlocks:
    """Return the blocks of a request in all groups, where layers alike share blocks of n_layers."""
    groups: list[KvGroup] = []
    n_states, n_placed = 0, Counter[Spec]()
    compressed = next((part.blocks.groups for part in parts if part.group.has_entries), ())
    for part in (part for part in parts if not part.group.has_entries):
        n_before = -(-n_placed[part.spec] // n_layers)
        n_placed[part.spec] += part.group.n_keeping
        n_parts = -(-n_placed[part.spec] // n_layers) - n_before
        n_states += n_parts * part.blocks.n_states
        (group,) = part.blocks.groups
        if part.is_draft and not n_parts * group.n_parts and group.layers.window is None:
            continue  # its layers are states, or lie in the target's blocks
        groups.append(replace(group, n_parts=n_parts * group.n_parts))
    return replace(parts[0].blocks, groups=(*groups, *compressed), n_states=n_states)


def _keep_alike(shards: tuple[Shard, Shard], max_model_len: int | None) -> bool:
    """Tell whether all layers of a model and its draft attend, and keep the same tokens."""
    kinds = set()
    for group in (group for shard in shards for group in shard.model.groups if group.n_keeping):
        keeps_all = group.window is None or (max_model_len is not None and group.window >= max_model_len)
        kinds.add((group.attends, *((None, None) if keeps_all else (group.kind, group.window))))
    return len(kinds) == 1 and all(attends for attends, _, _ in kinds)


def _with_alike(alone: KvLayout, draft: Shard) -> KvLayout:
    """Add the layers of a draft that keep the same tokens as those of its model, in the same blocks."""
    blocks, kept = alone.blocks, [group for group in draft.model.groups if group.n_keeping]
    parts = [GroupMemory(group, Spec.of(draft, group), alone.parts[0].blocks, is_draft=True) for group in kept]
    if blocks.windows:  # they count keys, and take no blocks
        of_draft = (KvGroup(alone.block_size, 0, group) for group in kept)
        blocks = replace(blocks, groups=(*blocks.groups, *of_draft))
    draft_bytes = alone.block_size * draft.kv_bytes_per_token
    return replace(alone, parts=(*alone.parts, *parts), blocks=blocks, draft_bytes=draft_bytes)


def _layers_per_block(parts: Sequence[GroupMemory]) -> int:
    """Return the layers of a block: the fewest of any kind, or the most where the numbers are close."""
    counts: Counter[Spec] = Counter()
    for part in (part for part in parts if not part.group.has_entries):
        counts[part.spec] += part.group.n_keeping
    least, most = min(counts.values()), max(counts.values())
    return most if most < least * PADDED_BELOW else least
