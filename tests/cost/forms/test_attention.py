"""Attention: never faster than the data sheet, never less for more, the same bits for scalars and arrays."""

from dataclasses import asdict, replace
from timeit import timeit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.catalog.specs import GpuSpec
from simserve.cost.forms.attention import DecodeAttention, PrefillAttention
from tests.cost.specs import H100

PREFILL = PrefillAttention(1e-5, 0.8, 40.0, 0.1, 200.0, 1e5, 0.6, 0.7, 1.0, 16.0)
BARE = replace(PREFILL, launch_s=0.0, width=0.0, wide=0.0, tile_pairs=0.0, row_flop=0.0, tail_rows=0.0, writes=0.0)
DECODE = DecodeAttention(9e-6, 1e-8, 0.9, 5.0, 0.05, 0.1, 3.0, 1.5e-8)
TWICE = replace(
    H100,
    flop_per_s={dtype: 2 * peak for dtype, peak in H100.flop_per_s.items()},
    hbm_bytes_per_s=2 * H100.hbm_bytes_per_s,
)
COUNTS = st.integers(1, 20_000)
SHAPES = st.sampled_from([(32, 8, 128), (8, 1, 64), (4, 4, 256), (64, 8, 128), (5, 1, 128)])


@st.composite
def prefills(draw: st.DrawFn) -> PrefillAttention:
    """Any coefficients within the bounds."""
    bounds = PrefillAttention.BOUNDS.items()
    return PrefillAttention(**{name: draw(st.floats(least, most)) for name, (_, least, most) in bounds})


@st.composite
def decodes(draw: st.DrawFn) -> DecodeAttention:
    """Any coefficients within the bounds."""
    bounds = DecodeAttention.BOUNDS.items()
    return DecodeAttention(**{name: draw(st.floats(least, most)) for name, (_, least, most) in bounds})


def prompt(n: int, cached: int = 0) -> tuple[int, int, int]:
    """Query tokens, pairs and keys read of n tokens after so many cached ones."""
    return n, n * cached + n * (n + 1) // 2, cached + n


@given(prefills(), SHAPES, COUNTS, st.integers(1, 10**8), COUNTS, st.integers(0, 5000))
def test_prefill_never_takes_less_for_more_of_anything(
    form: PrefillAttention, heads: tuple[int, int, int], n: int, pairs: int, context: int, more: int
) -> None:
    cost = form.at(H100, *heads, "bf16")
    least = cost.seconds(n, pairs, context)
    assert least <= cost.seconds(n + more, pairs, context)
    assert least <= cost.seconds(n, pairs + more, context)
    assert least <= cost.seconds(n, pairs, context + more)


@given(prefills(), SHAPES, COUNTS, st.integers(0, 30_000), st.sampled_from(["bf16", "fp8"]))
def test_prefill_is_never_faster_than_the_data_sheet(
    form: PrefillAttention, heads: tuple[int, int, int], n: int, cached: int, kv_dtype: str
) -> None:
    (n_heads, n_kv_heads, head_dim), (_, pairs, keys) = heads, prompt(n, cached)
    seconds = form.at(H100, *heads, kv_dtype).seconds(n, pairs, keys)
    key_bytes = 2 * n_kv_heads * head_dim * (2 if kv_dtype == "bf16" else 1)
    least_bytes = 2 * n * n_heads * head_dim * 2 + keys * key_bytes
    assert seconds >= 4 * n_heads * head_dim * pairs / H100.flop_per_s["bf16"]
    assert seconds >= least_bytes / H100.hbm_bytes_per_s * (1 - 1e-12)


@given(prefills(), SHAPES, st.lists(st.tuples(COUNTS, st.integers(0, 10**9), COUNTS), min_size=1, max_size=20))
def test_prefill_is_the_same_for_scalars_and_arrays(
    form: PrefillAttention, heads: tuple[int, int, int], steps: list[tuple[int, int, int]]
) -> None:
    cost = form.at(H100, *heads, "fp8")
    columns = (np.array(column) for column in zip(*steps, strict=True))
    assert cost.seconds(*columns).tolist() == [cost.seconds(*step) for step in steps]


def test_prefill_of_a_long_prompt_is_its_flop_at_the_share_of_the_peak() -> None:
    n = 100_000
    flop = 4 * 32 * 128 * n * (n + 1) / 2
    result = BARE.at(H100, 32, 8, 128, "bf16").seconds(*prompt(n))
    assert result == pytest.approx(flop / (0.8 * H100.flop_per_s["bf16"]), rel=1e-3)  # its bytes add next to nothing


def test_prefill_in_8_bits_has_the_peak_of_8_bits() -> None:
    slow, fast = (replace(BARE, compute_bits=bits).at(H100, 32, 8, 128, "fp8").pair_s for bits in (16.0, 8.0))
    assert slow / fast == pytest.approx(H100.flop_per_s["fp8"] / H100.flop_per_s["bf16"])


def test_a_chunk_after_a_cached_context_costs_more_than_alone_and_less_than_the_whole_prompt() -> None:
    cost = PREFILL.at(H100, 32, 8, 128, "bf16")
    alone, after, whole = (cost.seconds(*prompt(*sizes)) for sizes in ((2048, 0), (2048, 6144), (8192, 0)))
    assert alone < after < whole
    assert cost.seconds(*prompt(6144)) + after == pytest.approx(whole, rel=0.1)  # a launch and a tail more


def test_several_chunks_in_a_step_take_less_than_one_after_the_other_and_more_than_the_longest() -> None:
    cost = PREFILL.at(H100, 32, 8, 128, "bf16")
    chunks = [prompt(512), prompt(1024, 4096), prompt(64, 30_000)]
    together = cost.seconds(*(sum(column) for column in zip(*chunks, strict=True)))
    assert max(cost.seconds(*chunk) for chunk in chunks) < together < sum(cost.seconds(*chunk) for chunk in chunks)


def test_few_tiles_leave_sms_idle() -> None:
    # One prompt on one head: 32 tiles on 132 SMs; the last tile of 4,096 keys takes one SM as long as its FLOP.
    tail = replace(BARE, tail_rows=1.0).at(H100, 1, 1, 128, "bf16").seconds(*prompt(4096))
    one_sm_flop_per_s = 0.8 * H100.flop_per_s["bf16"] / H100.n_sms
    assert tail == pytest.approx(4 * 128 * 128 * 4096 / one_sm_flop_per_s, rel=0.02)


def test_one_step_is_costed_within_a_few_microseconds() -> None:
    cost = PREFILL.at(H100, 32, 8, 128, "bf16")
    best = min(timeit(lambda: cost.seconds(2048, 2_098_176, 2048), number=1000) for _ in range(5)) / 1000
    assert best < 5e-6  # 0.5 on a quiet core; no numpy on this path, which would take ten times as long


@given(decodes(), SHAPES, st.integers(1, 2000), st.integers(1, 30_000))
def test_decode_never_takes_less_for_a_key_or_a_request_more(
    form: DecodeAttention, heads: tuple[int, int, int], n: int, context: int
) -> None:
    intercept_s, slope_s = form.line(H100, *heads, "bf16", np.arange(n + 2))
    assert intercept_s[n] + slope_s[n] * n * context <= intercept_s[n + 1] + slope_s[n + 1] * n * context
    assert slope_s[n] > 0


@given(decodes(), SHAPES, st.integers(1, 2000), st.integers(1, 30_000), st.sampled_from(["bf16", "fp8"]))
def test_decode_is_never_faster_than_the_data_sheet(
    form: DecodeAttention, heads: tuple[int, int, int], n: int, context: int, kv_dtype: str
) -> None:
    n_heads, n_kv_heads, head_dim = heads
    intercept_s, slope_s = form.line(H100, *heads, kv_dtype, n)
    key_bytes = 2 * n_kv_heads * head_dim * (2 if kv_dtype == "bf16" else 1)
    n_bytes = n * (context * key_bytes + 2 * n_heads * head_dim * 2)
    assert intercept_s + slope_s * n * context >= n_bytes / H100.hbm_bytes_per_s * (1 - 1e-12)
    assert slope_s >= 4 * n_heads * head_dim / H100.flop_per_s["bf16"]


def test_the_last_sm_reads_half_a_piece_alone_where_pieces_do_not_all_run_at_once() -> None:
    """132 SMs of 50 GB/s; pieces that round up fill more than them from 24 KV heads on."""
    form = replace(DECODE, sm_bytes_per_s=50e9)
    key_bytes = 2 * 2 * 128 * 2
    n = np.array([0, 1, 8, 12, 13, 66, 132, 660])  # requests with two KV heads
    waits_s = np.subtract(*(each.line(H100, 16, 2, 128, "bf16", n)[1] for each in (form, DECODE)))
    pieces = np.array([np.inf] * 4 + [132, 132, 264, 1320])
    assert waits_s == pytest.approx(key_bytes / (2 * pieces * 50e9))


@given(st.integers(24, 2000), st.integers(1, 30_000))
def test_another_request_as_long_as_the_others_never_makes_a_step_faster(n: int, context: int) -> None:
    form = replace(DECODE, sm_bytes_per_s=33e9)
    seconds = [
        intercept_s + slope_s * requests * context
        for requests in (n, n + 1)
        for intercept_s, slope_s in [form.line(H100, 8, 1, 128, "fp8", requests)]
    ]
    assert seconds[0] < seconds[1]


def test_decode_is_the_same_for_scalars_and_arrays() -> None:
    n = np.arange(3000)
    intercepts, slopes = DECODE.line(H100, 32, 8, 128, "fp8", n)
    lines = [DECODE.line(H100, 32, 8, 128, "fp8", int(k)) for k in n]
    assert list(zip(intercepts.tolist(), slopes.tolist(), strict=True)) == lines


def test_an_fp8_cache_halves_the_bytes_of_a_key() -> None:
    slopes = [DECODE.line(H100, 32, 8, 128, dtype, 4)[1] for dtype in ("bf16", "fp8")]
    assert slopes[0] == pytest.approx(2 * slopes[1])


def test_a_key_of_eight_heads_at_the_full_bandwidth_takes_its_4096_bytes() -> None:
    ideal = DecodeAttention(0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    intercept_s, slope_s = ideal.line(H100, 32, 8, 128, "bf16", 3)
    assert slope_s == pytest.approx(4096 / 3.35e12)
    assert intercept_s == pytest.approx(3 * 2 * 32 * 128 * 2 / 3.35e12)


def test_many_query_heads_on_a_key_are_bound_by_compute() -> None:
    ideal = DecodeAttention(0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    assert ideal.line(H100, 512, 1, 128, "bf16", 1)[1] == pytest.approx(4 * 512 * 128 / 9.894e14)


@pytest.mark.parametrize("gpu", [H100, TWICE])
def test_a_gpu_twice_as_fast_halves_what_is_not_a_launch(gpu: GpuSpec) -> None:
    factor = gpu.hbm_bytes_per_s / H100.hbm_bytes_per_s
    prefill_s = PREFILL.at(gpu, 32, 8, 128, "bf16").seconds(*prompt(5000)) - PREFILL.launch_s
    assert prefill_s * factor == pytest.approx(PREFILL.at(H100, 32, 8, 128, "bf16").seconds(*prompt(5000)) - 1e-5)
    slope_s = DECODE.line(gpu, 32, 8, 128, "bf16", 8)[1]
    assert slope_s * factor == pytest.approx(DECODE.line(H100, 32, 8, 128, "bf16", 8)[1])


def test_coefficients_are_plain_numbers() -> None:
    assert all(isinstance(value, float) for form in (PREFILL, DECODE) for value in asdict(form).values())
