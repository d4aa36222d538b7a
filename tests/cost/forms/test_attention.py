"""Attention: never faster than the data sheet, never less for more, the same bits for scalars and arrays."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.cost.forms.attention import DecodeAttention, PrefillAttention
from tests.cost.specs import H100

PREFILL = PrefillAttention(1e-5, 0.8, 40.0, 200.0, 0.3, 0.7, 2.0)
DECODE = DecodeAttention(9e-6, 0.9, 64.0, 1.5e-8, 2e-6)
TWICE = replace(H100, flop_per_s={"bf16": 2 * H100.flop_per_s["bf16"]}, hbm_bytes_per_s=2 * H100.hbm_bytes_per_s)
COUNTS = st.integers(1, 20_000)


@settings(deadline=None)
@given(COUNTS, st.integers(1, 10**8), COUNTS, st.integers(0, 5000))
def test_prefill_never_takes_less_for_more_of_anything(n: int, pairs: int, context: int, more: int) -> None:
    cost = PREFILL.at(H100, 32, 8, 128, "bf16")
    least = cost.seconds(n, pairs, context)
    assert least <= cost.seconds(n + more, pairs, context)
    assert least <= cost.seconds(n, pairs + more, context)
    assert least <= cost.seconds(n, pairs, context + more)


def test_prefill_is_the_same_for_scalars_and_arrays() -> None:
    cost = PREFILL.at(H100, 32, 8, 128, "fp8")
    n = np.arange(1, 3000, 7)
    pairs = n * (n + 1) // 2
    assert cost.seconds(n, pairs, n).tolist() == [
        cost.seconds(int(a), int(b), int(a)) for a, b in zip(n, pairs, strict=True)
    ]


def test_prefill_of_a_long_prompt_is_its_flop_at_the_share_of_the_peak() -> None:
    n = 100_000
    flop = 4 * 32 * 128 * n * (n + 1) / 2
    bare = replace(PREFILL, width=0.0, tile_pairs=0.0, tail_frac=0.0, writes=0.0, launch_s=0.0)
    assert bare.at(H100, 32, 8, 128, "bf16").seconds(n, n * (n + 1) / 2, n) == pytest.approx(
        flop / (0.8 * H100.flop_per_s["bf16"])
    )
    full = PREFILL.at(H100, 32, 8, 128, "bf16").seconds(n, n * (n + 1) / 2, n)
    assert full > flop / H100.flop_per_s["bf16"]


@settings(deadline=None)
@given(st.integers(1, 2000), st.integers(1, 30_000), st.sampled_from([1, 2, 8]))
def test_decode_never_takes_less_for_a_key_or_a_request_more(n: int, context: int, n_kv_heads: int) -> None:
    intercept_s, slope_s = DECODE.line(H100, 8 * n_kv_heads, n_kv_heads, 128, "bf16", np.arange(n + 2))
    assert slope_s[n] > 2 * n_kv_heads * 128 * 2 / H100.hbm_bytes_per_s  # bytes of a key at the full bandwidth
    kv_tokens = n * context
    assert intercept_s[n] + slope_s[n] * kv_tokens <= intercept_s[n + 1] + slope_s[n + 1] * (kv_tokens + 1)


def test_an_fp8_cache_halves_the_bytes_of_a_key() -> None:
    slopes = [DECODE.line(H100, 32, 8, 128, dtype, 4)[1] for dtype in ("bf16", "fp8")]
    assert slopes[0] == pytest.approx(2 * slopes[1])


def test_few_requests_are_split_over_the_sms_and_their_parts_combined() -> None:
    one, full = (DECODE.line(H100, 8, 1, 128, "bf16", n)[0] - n * DECODE.unit_s for n in (1, 132))
    per_request_s = DECODE.line(H100, 8, 1, 128, "bf16", 300)[0] - DECODE.line(H100, 8, 1, 128, "bf16", 299)[0]
    extra_s = (per_request_s - DECODE.unit_s) * 131
    assert one + extra_s - full == pytest.approx(DECODE.combine_s * (1 - 1 / 132))


def test_a_gpu_twice_as_fast_halves_what_is_not_a_launch() -> None:
    n, pairs = 5000, 12_502_500
    slow, fast = (PREFILL.at(gpu, 32, 8, 128, "bf16").seconds(n, pairs, n) - 1e-5 for gpu in (H100, TWICE))
    assert slow == pytest.approx(2 * fast)
    assert DECODE.line(H100, 32, 8, 128, "bf16", 8)[1] == pytest.approx(
        2 * DECODE.line(TWICE, 32, 8, 128, "bf16", 8)[1]
    )
