"""Multi-head latent attention: roofs worked by hand, lines that are lines, monotone, scaled by the GPU."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.cost.forms.mla import (
    CACHED,
    DOWN_WEIGHTS,
    HEAD_WEIGHTS,
    KEY_WIDTH,
    PAIR_WIDTH,
    UP_WEIGHTS,
    MlaDecode,
    MlaDecodeModule,
    MlaPrefill,
    MlaPrefillModule,
)
from tests.cost.specs import H100

PREFILL: dict[str, float] = {
    "launch_s": 0.0,
    "flop_share": 1.0,
    "byte_share": 1.0,
    "pad_keys": 0.0,
    "sharpness": 1e3,
}
DECODE: dict[str, float] = {
    "launch_s": 0.0,
    "flop_share": 1.0,
    "byte_share": 1.0,
    "query_share": 1.0,
    "lone_requests": 0.0,
    "sharpness": 1e3,
}
MATMUL: dict[str, float] = {"matmul_flop_share": 1.0, "matmul_byte_share": 1.0, "moved_values": 0.0}
REAL = MlaDecodeModule(8e-5, 0.8, 0.9, 0.2, 0.6, 3.0, 0.6, 0.7, 1e5)
N = np.arange(1, 600)


def whole_prompt(n_tokens: Any) -> tuple[Any, Any, Any]:
    return n_tokens, n_tokens * (n_tokens + 1) / 2, n_tokens


def test_a_layer_of_deepseek_v3_has_187_million_weights_and_caches_576_values_a_token() -> None:
    # 61 layers of them are 11.4 of the model's 671 billion parameters.
    assert DOWN_WEIGHTS + 128 * (HEAD_WEIGHTS + UP_WEIGHTS) == 187_105_280
    assert CACHED == 576


def test_a_long_prompt_takes_its_flop() -> None:
    seconds = MlaPrefill(**PREFILL).seconds(H100, 128, *whole_prompt(30_000))
    assert seconds == pytest.approx(2 * (192 + 128) * 128 * 30_000 * 30_001 / 2 / 9.894e14)


def test_few_heads_read_the_cache_once_a_key() -> None:
    intercept, slope = MlaDecode(**DECODE).line(H100, 16, "bf16", 8)
    assert slope == pytest.approx(576 * 2 / 3.35e12)
    assert intercept == pytest.approx(8 * 16 * KEY_WIDTH * 2 / 3.35e12)


def test_an_fp8_cache_of_128_heads_is_bound_by_compute() -> None:
    _, slope = MlaDecode(**DECODE).line(H100, 128, "fp8", 8)
    assert slope == pytest.approx(2 * (576 + 512) * 128 / 9.894e14)


def test_a_module_of_one_request_reads_its_weights() -> None:
    intercept, _ = MlaDecodeModule(**DECODE, **MATMUL).module_line(H100, "bf16", 128, "bf16", 1)
    assert intercept == pytest.approx(187_105_280 * 2 / 3.35e12, rel=0.01)


def test_a_prompt_in_two_chunks_makes_its_first_keys_twice() -> None:
    form = MlaPrefillModule(**PREFILL, **MATMUL)
    whole = form.module_s(H100, "bf16", 128, *whole_prompt(8192))
    first = form.module_s(H100, "bf16", 128, *whole_prompt(4096))
    second = form.module_s(H100, "bf16", 128, 4096, 8192 * 8193 / 2 - 4096 * 4097 / 2, 8192)
    assert first + second - whole == pytest.approx(2 * 4096 * 128 * UP_WEIGHTS / 9.894e14)


def test_one_request_alone_spreads_worse_than_many() -> None:
    slopes = MlaDecode(**{**DECODE, "lone_requests": 1.0}).line(H100, 16, "bf16", np.array([1, 4]))[1]
    assert slopes[0] / slopes[1] == pytest.approx(2 / 1.25)


@pytest.mark.parametrize("context", [1, 100, 100_000])
@pytest.mark.parametrize("n_heads", [1, 16, 128])
def test_more_requests_or_longer_contexts_never_take_less(context: int, n_heads: int) -> None:
    intercept, slope = REAL.module_line(H100, "fp8_block", n_heads, "bf16", N)
    assert (np.diff(intercept + slope * N * context) > 0).all()
    assert (np.asarray(slope) > 0).all()


def test_longer_prompts_never_take_less() -> None:
    form = MlaPrefillModule(1e-5, 0.6, 0.5, 64.0, 2.0, 0.6, 0.7, 1e4)
    assert (np.diff(form.module_s(H100, "bf16", 16, *whole_prompt(N.astype(float)))) > 0).all()


@pytest.mark.parametrize("n_heads", [1, 16, 128])
def test_no_decode_beats_the_data_sheet(n_heads: int) -> None:
    ideal = MlaDecodeModule(**DECODE, **MATMUL)
    for kv_dtype in ("bf16", "fp8"):
        least = ideal.module_line(H100, "bf16", n_heads, kv_dtype, N)
        result = REAL.module_line(H100, "bf16", n_heads, kv_dtype, N)
        assert all((np.asarray(one) >= other).all() for one, other in zip(result, least, strict=True))


def test_twice_the_gpu_takes_half_the_time_of_the_roofs() -> None:
    fast = replace(
        H100,
        hbm_bytes_per_s=2 * H100.hbm_bytes_per_s,
        flop_per_s={name: 2 * peak for name, peak in H100.flop_per_s.items()},
    )
    decode, prefill = MlaDecodeModule(**DECODE, **MATMUL), MlaPrefillModule(**PREFILL, **MATMUL)
    slow = decode.module_line(H100, "bf16", 16, "bf16", 8)
    assert decode.module_line(fast, "bf16", 16, "bf16", 8) == pytest.approx((slow[0] / 2, slow[1] / 2))
    prompt = whole_prompt(2048)
    assert prefill.module_s(fast, "bf16", 16, *prompt) == pytest.approx(prefill.module_s(H100, "bf16", 16, *prompt) / 2)


def test_widths_of_a_pair_and_of_a_cached_key() -> None:
    assert (PAIR_WIDTH, KEY_WIDTH) == (128 + 64 + 128, 512 + 64 + 512)
