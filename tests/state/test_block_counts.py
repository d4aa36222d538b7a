"""Machine integers count the blocks and keys of a request as the formulas of its layers do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.catalog.layers import GroupKind, LayerGroup
from simserve.state.block_counts import BlockCounts, GroupCounts, counts_of
from simserve.state.layer_blocks import KvGroup, LayerBlocks

TOKENS = st.integers(0, 400)


@st.composite
def layers(draw: st.DrawFn) -> LayerBlocks:
    """Draw windows, chunks, states and whole layers, in blocks of one or two sizes."""
    size = draw(st.integers(1, 9))
    kinds: st.SearchStrategy[GroupKind] = st.sampled_from(["windowed", "chunked", "state"])
    groups = [
        KvGroup(size * draw(st.sampled_from([1, 3])), draw(st.integers(1, 3)), LayerGroup(draw(kinds), 1, window))
        for window in draw(st.lists(st.integers(1, 40), max_size=3))
    ]
    whole = KvGroup(size, draw(st.integers(0 if groups else 1, 2)))
    return LayerBlocks((*groups, whole), draw(st.integers(0, 3)), draw(st.none() | st.integers(1, 60)))


@given(layers(), TOKENS, TOKENS, TOKENS)
def test_blocks_are_those_of_the_formulas(blocks: LayerBlocks, n_tokens: int, n_more: int, n_found: int) -> None:
    counts, common = counts_of(blocks), blocks.common_tokens
    assert counts.filled(n_tokens) == blocks.filled(n_tokens)
    assert counts.dropped(n_tokens) == blocks.dropped(n_tokens)
    assert counts.held(n_tokens) == blocks.held(n_tokens)
    assert counts.begun(n_tokens, n_more) == blocks.begun(n_tokens, n_more)
    found = n_found // common * common
    assert counts.most(found + n_tokens, found) == blocks.most(found + n_tokens, found)
    assert counts.tokens_in(n_more) == blocks.tokens_in(n_more)
    assert counts.tokens_to_fill(n_more) == blocks.tokens_to_fill(n_more)


@given(layers(), st.lists(st.tuples(TOKENS, TOKENS), max_size=4), st.integers(1, 400))
def test_keys_are_those_of_the_formulas(blocks: LayerBlocks, pairs: list[tuple[int, int]], n_context: int) -> None:
    counts, chunks = counts_of(blocks), [(first, first + n) for first, n in pairs]
    for i, group in enumerate(blocks.windows):
        assert isinstance(counts, GroupCounts), "windows make groups"
        assert counts.keys(i, n_context) == group.layers.keys(n_context)
        if group.layers.attends:
            assert counts.reads_of(i, chunks) == group.layers.reads_of(chunks)


@pytest.mark.parametrize("size", [1, 16])
def test_layers_that_keep_all_tokens_in_one_block_need_no_groups(size: int) -> None:
    assert type(counts_of(LayerBlocks((KvGroup(size),)))) is BlockCounts
