"""Forms of sparse attention: sums by hand, and what engines know of a step's prompts."""

from dataclasses import replace

import pytest

from simserve import catalog
from simserve.cost.forms.sparse import (
    BestPrefill,
    SparseDecodeModule,
    SparsePrefillModule,
    SparseSizes,
    attended,
    shared_s,
)
from simserve.cost.kernels import prompt_tokens
from simserve.cost.matrices import n_weights
from simserve.cost.shard import Shard

H100 = catalog.load_gpu("h100-sxm")
BYTES_PER_S, FLOP_PER_S = H100.hbm_bytes_per_s, H100.flop_per_s["bf16"]
GLM = Shard(catalog.load_model("glm-5"), "fp8_block", "fp8", tensor=8)
SIZES = SparseSizes.of(GLM)
DECODE = SparseDecodeModule(5e-5, 0.7, 0.8, 0.5, 0.0, 10.0, 0.6, 0.7, 1e5, 0.25, 4.0)
PREFILL = SparsePrefillModule(8e-5, 0.5, 24.0, 0.6, 0.2, 5e3, 0.4, 0.5, 3e5, 10.0, 0.0)


def test_sizes_are_those_of_the_model() -> None:
    assert (SIZES.n_heads, SIZES.cached, SIZES.hidden, SIZES.top_k) == (8, 576, 6144, 2048)
    down, queries, up, output = 6144 * (2048 + 576), 2048 * 8 * 256, 512 * 8 * (192 + 256), 8 * 256 * 6144
    indexer = 2048 * 32 * 128 + 6144 * (128 + 32)
    assert SIZES.n_weights == down + queries + up + output + indexer
    assert (SIZES.score_flop, SIZES.index_bytes) == (2 * 32 * 128, 132)


def test_decode_is_a_line_in_the_attended_keys_and_one_in_all() -> None:
    intercept, slope = DECODE.best_line(H100, SIZES, "fp8", 16)
    queries_s = 2 * (576 + 512) * 8 * 16 / (BYTES_PER_S * 0.5)
    moved_s = 2 * 1e5 * 6144 / 7168 * 16 / BYTES_PER_S
    assert intercept == pytest.approx(5e-5 + queries_s + moved_s)
    assert slope == pytest.approx(576 / (BYTES_PER_S * 0.8), rel=1e-3)
    score_s = (132 + 8) / (BYTES_PER_S * 0.25)  # a 32-bit score is written and read
    assert DECODE.scored_s(H100, SIZES, 16) == pytest.approx(score_s * (1 + 4 / 16))


def test_prefill_sums_pairs_scores_keys_and_tokens() -> None:
    attention_s = PREFILL.attention_s(H100, SIZES, 4096, 6e6, 8e6, 4096)
    attended_s = 2 * (576 + 512) * (8 + 24) * 6e6 / (FLOP_PER_S * 0.5)
    scored_s = 8e6 * 2 * 32 * 128 / (H100.flop_per_s["fp8"] * 0.6) + 8e6 * 8 / (BYTES_PER_S * 0.2)
    moved_s = 2 * (5e3 + 3e5 * 6144 / 7168) * 4096 / BYTES_PER_S
    assert attention_s == pytest.approx(8e-5 + attended_s + scored_s + moved_s)
    matrices_s = 2 * 4096 * SIZES.n_weights / (H100.flop_per_s["fp8"] * 0.4)
    assert PREFILL.matrices_s(H100, "fp8_block", SIZES.n_weights, 4096) == pytest.approx(matrices_s, rel=1e-3)


def test_matrices_of_both_phases_take_the_higher_speed() -> None:
    size = n_weights(GLM.projections)
    assert shared_s(PREFILL, DECODE, H100, "fp8_block", size, 0) == 0
    compute_s = 2 * 1e5 * size / (H100.flop_per_s["fp8"] * 0.6)
    assert shared_s(PREFILL, DECODE, H100, "fp8_block", size, 1e5) == pytest.approx(compute_s)
    read_s = size / (BYTES_PER_S * 0.7)
    assert shared_s(PREFILL, DECODE, H100, "fp8_block", size, 1) == pytest.approx(read_s)


@pytest.mark.parametrize("tokens", [64, 1024, 2048, 4096, 8192, 65_536])
def test_a_whole_prompt_attends_about_the_best_keys_of_each_token(tokens: int) -> None:
    rising = min(tokens, 2048)
    exact = rising * (rising + 1) / 2 + (tokens - rising) * 2048
    assert attended(tokens, tokens * (tokens + 1) / 2, 2048) == pytest.approx(exact, rel=0.08)
    assert attended(tokens, tokens * 1e9, 2048) == pytest.approx(tokens * 2048)


@pytest.mark.parametrize(("n", "first", "tokens"), [(1, 0, 4096), (8, 0, 100), (3, 5000, 512), (16, 1, 1)])
def test_sums_over_prompts_that_are_alike_tell_their_length(n: int, first: int, tokens: int) -> None:
    pairs = tokens * first + tokens * (tokens + 1) / 2
    assert prompt_tokens(n * tokens, n * pairs, n * (first + tokens)) == pytest.approx(tokens)


class Whole:
    def seconds(self, n_tokens: float, n_pairs: float, n_context_tokens: float) -> float:
        return -1.0


def test_prompts_of_no_more_keys_than_are_attended_take_whole_attention_where_the_engine_has_it() -> None:
    best = BestPrefill(PREFILL, H100, SIZES, 1e-7, Whole())
    alone = replace(best, whole=None)
    for n, first, tokens in ((1, 0, 2048), (8, 0, 1024), (4, 1536, 512)):
        work = (n * tokens, n * (tokens * first + tokens * (tokens + 1) / 2), n * (first + tokens))
        assert best.seconds(*work) == -1.0
        assert alone.seconds(*work) > 8e-5
    for first, tokens in ((0, 2049), (1537, 512)):
        work = (tokens, tokens * first + tokens * (tokens + 1) / 2, first + tokens)
        assert best.seconds(*work) == alone.seconds(*work)
