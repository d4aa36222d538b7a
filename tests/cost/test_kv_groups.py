"""What a request holds by layer group, against vLLM's own arithmetic and by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve import catalog
from simserve.catalog.layers import LayerGroup
from simserve.catalog.specs import ModelSpec
from simserve.cost.kv_groups import kv_layout
from simserve.cost.kv_layout import KvLayout
from simserve.cost.matrices import n_weights
from simserve.cost.shard import Shard
from simserve.cost.speculative import one_layer
from simserve.cost.weights import stages
from simserve.units import GIB
from tests.cost.specs import total_weights

OSS, NEXT, LLAMA = (catalog.load_model(name) for name in ("gpt-oss-120b", "qwen3-next-80b-a3b", "llama-3.1-8b"))


def layout(model: ModelSpec, n_tokens: int = 8192, block_size: int = 16) -> KvLayout:
    """The layout on one GPU, with steps of n tokens."""
    return kv_layout(Shard(model), block_size, n_tokens)


def blocks_by_group(held: KvLayout, n_tokens: int) -> tuple[int, ...]:
    """The most blocks that a request ever holds, by group; each group takes blocks until all its layers have one."""
    return tuple(-(-part.group.n_layers // held.n_layers) * part.blocks.most(n_tokens) for part in held.parts)


def bytes_by_group(held: KvLayout, n_tokens: int) -> list[float]:
    """The most bytes that a request ever holds, by group."""
    return [part.most_bytes(n_tokens) for part in held.parts]


def grouped(*groups: LayerGroup) -> ModelSpec:
    """Llama 3.1 8B with other layers: 4096 bytes a token and layer."""
    return replace(LLAMA, n_layers=sum(group.n_layers for group in groups), groups=groups)


@pytest.mark.parametrize(("max_num_batched_tokens", "gib"), [(1024, 4.54), (8192, 4.79)])
def test_a_full_context_of_gpt_oss_takes_what_vllm_says(max_num_batched_tokens: int, gib: float) -> None:
    held = layout(OSS, max_num_batched_tokens)
    assert round(sum(bytes_by_group(held, 131_072)) / GIB, 2) == gib
    window_blocks = -(-(127 + max_num_batched_tokens) // 16) + 1
    assert blocks_by_group(held, 131_072) == (window_blocks, 131_072 // 16)
    assert held.blocks.most(131_072) * held.block_bytes == sum(
        bytes_by_group(held, 131_072)
    )  # 18 layers each: no padding


def test_a_short_request_holds_its_own_tokens_in_windows_too() -> None:
    assert blocks_by_group(layout(OSS), 100) == (7, 7)


def test_a_token_of_qwen3_next_is_in_its_full_layers_only() -> None:
    assert Shard(NEXT).kv_bytes_per_token == 24_576
    held = layout(NEXT)
    states, full = held.parts
    assert (states.bytes_per_token, full.bytes_per_token) == (0, 24_576)
    one_layer = (32 * 128 * 128 + 3 * (2 * 2048 + 4096)) * 2  # matrices of the heads, inputs of the convolution
    assert states.bytes_per_request == 36 * one_layer
    assert bytes_by_group(held, 1)[0] == bytes_by_group(held, 262_144)[0] == 36 * one_layer


def test_a_state_fits_a_block_of_one_layer() -> None:
    held = layout(NEXT)
    assert held.block_size == 544  # as vLLM logs for this model: 536 tokens, rounded up to 16
    assert held.block_size * 2048 >= NEXT.linear.state_bytes if NEXT.linear else False
    assert blocks_by_group(held, 545) == (3, 2)  # 36 states in blocks of 12 layers


def test_a_prefix_cache_keeps_a_state_at_the_end_of_each_block() -> None:
    """A step of 8192 tokens writes up to 17 of them; then only the last stays, as without a cache."""
    held, plain = kv_layout(Shard(NEXT), 16, 8192, keeps_states=True), layout(NEXT)
    assert held.block_size == plain.block_size == 544
    assert [held.blocks.held(n) for n in (1, 544, 545, 9000)] == [plain.blocks.held(n) for n in (1, 544, 545, 9000)]
    n_states = -(-(8192 + 1) // 544) + 1
    assert blocks_by_group(held, 100_000) == (3 * n_states, -(-100_000 // 544))
    assert bytes_by_group(held, 100_000)[0] == n_states * bytes_by_group(plain, 1)[0]
    verifying = kv_layout(Shard(NEXT), 16, 8192, n_states=3, keeps_states=True)
    assert verifying.blocks.held(600) == held.blocks.held(600) + 2 * 3


def test_kinds_with_more_layers_take_several_blocks_and_close_numbers_are_padded() -> None:
    gemma = layout(grouped(LayerGroup("windowed", 52, 1024), LayerGroup("full", 10)))  # Gemma 3 27B
    assert (gemma.n_layers, [group.n_parts for group in gemma.blocks.groups]) == (10, [6, 1])
    assert gemma.blocks.most(100_000) == 6 * (-(-(1023 + 8192) // 16) + 1) + 6250
    behind, most = -(-1023 // 16), 1023 + 8192  # a hit holds the window behind it, of what a request holds at most
    assert gemma.blocks.most(100_000, 90_000) == 6 * (-(-most // 16) + 1 - behind) + 625
    assert gemma.blocks.most(90_100, 90_000) == 7 * 7
    close = layout(grouped(LayerGroup("windowed", 14, 1024), LayerGroup("full", 10)))
    assert (close.n_layers, [group.n_parts for group in close.blocks.groups]) == (14, [1, 1])


def test_a_chunk_keeps_no_block_more() -> None:
    llama4 = layout(grouped(LayerGroup("chunked", 24, 8192), LayerGroup("full", 8)))
    assert blocks_by_group(llama4, 1_000_000) == (3 * 1024, 62_500)
    assert blocks_by_group(llama4, 1000) == (3 * 63, 63)


def test_layers_without_attention_hold_nothing() -> None:
    some = layout(grouped(LayerGroup("none", 6), LayerGroup("full", 26)))
    assert blocks_by_group(some, 16) == (1,)
    assert sum(bytes_by_group(some, 16)) == 16 * 26 * 4096
    every = Shard(grouped(LayerGroup("full", 32)))
    without = Shard(grouped(LayerGroup("none", 6), LayerGroup("full", 26)))
    assert total_weights(every) - total_weights(without) == 6 * n_weights(every.attention_matrices)


def test_one_group_holds_what_a_plain_pool_counts() -> None:
    plain = layout(LLAMA)
    assert [plain.blocks.most(n) for n in (1, 16, 17, 1000)] == [1, 1, 2, 63]
    assert plain.block_bytes == 16 * Shard(LLAMA).kv_bytes_per_token


def test_a_draft_of_smaller_layers_has_larger_blocks() -> None:
    """Gemma 3 1B before 27B: 1,024 bytes a token and layer, and 8,192; 4 full layers are the fewest of any kind."""
    target, draft = (Shard(catalog.load_model(name)) for name in ("gemma-3-27b", "gemma-3-1b"))
    held = kv_layout(target, 16, 8192, draft=draft)
    assert (held.n_layers, held.block_size, held.block_bytes) == (4, 16, 4 * 16 * 8192)
    rows = [(part.group.kind, part.group.n_layers, part.is_draft) for part in held.parts]
    assert rows == [("windowed", 52, False), ("full", 10, False), ("windowed", 22, True), ("full", 4, True)]
    assert [(group.tokens, group.n_parts) for group in held.blocks.groups] == [(16, 13), (128, 6), (16, 3), (128, 1)]
    of_target = 13 * (-(-(1023 + 8192) // 16) + 1), 3 * 131_072 // 16
    of_draft = 6 * (-(-(511 + 8192) // 128) + 1), 131_072 // 128
    assert blocks_by_group(held, 131_072) == (*of_target, *of_draft) == (7501, 24_576, 414, 1024)
    assert (held.blocks.most(131_072), held.blocks_per_tokens) == (33_515, 16 + 7 / 8)
    assert [held.blocks.filled(n) for n in (1, 16, 17, 128, 129)] == [23, 23, 39, 8 * 16 + 7, 9 * 16 + 14]
    assert bytes_by_group(held, 131_072)[-1] == 131_072 * 4 * 1024
    many = held.blocks.filled(128_000) * held.block_bytes / 128_000  # with 2 layers of padding on either side
    assert many == (64 * 8192 + 28 * 1024) == 552_960


def test_layers_of_a_draft_share_the_blocks_of_layers_alike() -> None:
    """Llama 3.2 1B before gpt-oss: 16 full layers and 18, 2,048 bytes a token and layer, take two blocks of 18."""
    draft = Shard(catalog.load_model("llama-3.2-1b"))
    held = kv_layout(Shard(OSS), 16, 1024, draft=draft)
    assert (held.n_layers, held.block_bytes) == (18, 18 * 16 * 2048)
    assert held.blocks.filled(16) == 3
    assert held.blocks.most(131_072) == 2 * 8192 + -(-(127 + 1024) // 16) + 1
    assert bytes_by_group(held, 131_072)[-1] == 131_072 * 16 * 2048
    eagle = kv_layout(Shard(OSS), 16, 1024, draft=Shard(one_layer(OSS, "eagle")))
    assert (eagle.n_layers, eagle.blocks.filled(16)) == (19, 2)  # 18 with a window are padded
    assert (eagle.stage_bytes([9, 9]), eagle.stage_bytes([18, 18])) == (10 * 16 * 2048, 19 * 16 * 2048)


def test_a_block_holds_model_and_draft_where_all_layers_keep_the_same() -> None:
    draft = Shard(catalog.load_model("llama-3.2-1b"))
    plain = kv_layout(Shard(LLAMA), 16, 1024, draft=draft)
    assert (plain.blocks.is_plain, plain.block_bytes) == (True, 16 * (32 * 4096 + 16 * 2048))
    window = LayerGroup("windowed", 32, 512)
    both = kv_layout(Shard(grouped(window)), 16, 1024, draft=Shard(grouped(replace(window, n_layers=4))))
    assert (both.blocks.filled(16), both.block_bytes) == (1, 16 * 36 * 4096)
    assert both.stage_bytes([16]) == 16 * (16 + 4) * 4096
    assert [group.layers for group in both.blocks.windows] == [window, replace(window, n_layers=4)]
    never_filled = kv_layout(Shard(grouped(window)), 16, 1024, 512, draft=Shard(grouped(LayerGroup("full", 4))))
    assert never_filled.blocks.is_plain and never_filled.block_bytes == 16 * 36 * 4096


def test_a_draft_of_larger_layers_gives_its_target_larger_blocks_and_odd_ones_are_padded() -> None:
    windows = grouped(LayerGroup("windowed", 16, 512), LayerGroup("full", 16))
    large, odd = (replace(LLAMA, n_kv_heads=n, n_layers=4, groups=(LayerGroup("full", 4),)) for n in (16, 12))
    held = kv_layout(Shard(windows), 16, 1024, draft=Shard(large))
    assert held.block_bytes == 4 * 16 * 8192
    assert (held.blocks.n_by_tokens, held.block_size) == ({32: 4 + 4, 16: 1}, 16)
    assert [held.blocks.filled(n) for n in (16, 32, 33)] == [4 + 4 + 1, 4 + 4 + 2, 8 + 8 + 3]
    padded = kv_layout(Shard(windows), 16, 1024, draft=Shard(odd))
    assert (padded.block_size, padded.block_bytes) == (16, 4 * 16 * 6144)


def test_states_of_a_draft_count_beside_those_of_its_target() -> None:
    small = replace(NEXT, n_layers=16, groups=(LayerGroup("state", 12), LayerGroup("full", 4)))
    alone = kv_layout(Shard(LLAMA), 16, 1024, n_states=3, draft=Shard(small))
    # A state of Qwen3-Next, with the inputs of three tokens more than its convolution needs but one.
    n_bytes = (32 * 128 * 128 + (3 + 2) * (2 * 2048 + 4096)) * 2
    assert alone.block_size == -(-n_bytes // (16 * 4096)) * 16 == 288
    assert alone.blocks.n_states == 3 * 3
    assert alone.blocks.most(1) == 9 + 8 + 1


KINDS = st.sampled_from([("full", None), ("windowed", 24), ("windowed", 4096), ("chunked", 64), ("state", None)])


@given(
    st.lists(KINDS, min_size=1, max_size=3, unique=True),
    st.lists(st.integers(1, 20), min_size=3, max_size=3),
    st.integers(1, 9000),
)
def test_a_request_has_room_for_all_that_its_last_token_attends(
    kinds: list[tuple[str, int | None]], counts: list[int], n_tokens: int
) -> None:
    groups = [LayerGroup(kind, n, window) for (kind, window), n in zip(kinds, counts, strict=False)]  # type: ignore[arg-type]
    held = layout(replace(NEXT, n_layers=sum(group.n_layers for group in groups), groups=tuple(groups)), 300)
    attended = sum(group.n_parts * -(-group.layers.keys(n_tokens) // held.block_size) for group in held.blocks.groups)
    assert held.blocks.most(n_tokens) >= attended


def test_keys_that_the_last_token_attends() -> None:
    kinds = [LayerGroup("full", 1), LayerGroup("windowed", 1, 4), LayerGroup("chunked", 1, 4), LayerGroup("state", 1)]
    assert [[group.keys(n) for n in (1, 4, 5, 8, 9)] for group in kinds] == [
        [1, 4, 5, 8, 9],
        [1, 4, 4, 4, 4],
        [1, 4, 1, 4, 1],
        [0] * 5,
    ]


def test_stages_of_a_pipeline_share_out_every_group() -> None:
    dealt = [stage.n_in_groups for stage in stages(NEXT, 5)]
    assert [sum(each) for each in dealt] == [stage.n_layers for stage in stages(NEXT, 5)]
    assert [sum(column) for column in zip(*dealt, strict=True)] == [36, 12]
    assert all(2 <= n_full <= 3 for _, n_full in dealt)
