"""Matrix products: never faster than the data sheet, rising, and at home on other cards."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.catalog.dtypes import BYTES_PER_VALUE
from simserve.cost.forms.gemm import Gemm
from tests.cost.specs import H100

FORM = Gemm(
    launch_s=3.5e-6,
    flop_share=0.85,
    byte_share=0.87,
    sharpness=4.0,
    wave_share=0.2,
    input_bytes=0.0,
    store_passes=0.5,
    split_s=5e-6,
    chooses=1.0,
)
BY_ROWS = replace(FORM, input_bytes=7.0, chooses=0.0)
BARE = replace(FORM, launch_s=0.0, flop_share=1.0, byte_share=1.0, sharpness=20.0, wave_share=0.0, store_passes=0.0)
SIZES = st.sampled_from([256, 1024, 1280, 5120, 8192, 25600])


@given(st.integers(1, 40_000), SIZES, SIZES, st.sampled_from(["bf16", "fp8", "fp8_block", "int4"]))
def test_no_product_is_faster_than_the_data_sheet(m: int, n: int, k: int, dtype: str) -> None:
    compute_s = 2 * m * n * k / H100.peak_flop_per_s(dtype)
    memory_s = n * k * BYTES_PER_VALUE[dtype] / H100.hbm_bytes_per_s
    for form in (FORM, BY_ROWS):
        assert form.seconds(H100, dtype, m, n, k) > max(compute_s, memory_s)


@pytest.mark.parametrize("form", [FORM, BY_ROWS])
def test_more_tokens_never_take_less(form: Gemm) -> None:
    seconds = form.seconds(H100, "fp8", np.arange(8193), 5120, 5120)
    assert seconds[0] == 0
    assert (np.diff(seconds) >= 0).all()


def test_empty_rows_of_a_tile_slow_kernels_for_more_than_few_rows() -> None:
    """32 rows fill half of a tile, 96 three quarters of the next wider one, and 513 rows two thirds of three pairs. The
    weights of such a product are read in no time here, as it is the computing that takes longer."""
    card = replace(H100, hbm_bytes_per_s=1e30)
    m, half = np.array([16, 32, 64, 96, 128, 513]), replace(BY_ROWS, few_rows=16.0, empty_share=0.5)
    full = replace(BY_ROWS, few_rows=16.0)
    bare = {"launch_s": 0.0, "input_bytes": 0.0, "store_passes": 0.0}
    times = [replace(each, **bare).seconds(card, "fp8", m, 5120, 5120) for each in (half, full)]
    empty = [0, 1 / 2, 0, 1 / 4, 0, 255 / 768]
    assert times[0] / times[1] == pytest.approx(1 + 0.5 * np.array(empty))


@given(st.integers(1, 5000), SIZES, SIZES)
def test_wider_and_deeper_weights_take_longer(m: int, n: int, k: int) -> None:
    assert FORM.seconds(H100, "bf16", m, n, k) < FORM.seconds(H100, "bf16", m, 2 * n, k)
    assert FORM.seconds(H100, "bf16", m, n, k) < FORM.seconds(H100, "bf16", m, n, 2 * k)


def test_one_token_reads_the_weights_and_many_are_bound_by_compute() -> None:
    n = k = 8192
    assert BARE.seconds(H100, "bf16", 1, n, k) == pytest.approx((n * k + n + k) * 2 / H100.hbm_bytes_per_s, rel=0.06)
    m = 128 * H100.n_sms
    assert BARE.seconds(H100, "bf16", m, n, k) == pytest.approx(2 * m * n * k / H100.flop_per_s["bf16"], rel=1e-3)


def test_fp8_pays_for_quantizing_its_activations() -> None:
    passes = replace(BARE, input_bytes=8.0)
    extra_s = passes.seconds(H100, "fp8", 4096, 4096, 4096) - BARE.seconds(H100, "fp8", 4096, 4096, 4096)
    assert extra_s == pytest.approx(8 * 4096 * 4096 / H100.hbm_bytes_per_s)


def test_a_card_twice_as_fast_halves_all_but_launches() -> None:
    twice = replace(H100, flop_per_s={"bf16": 2 * H100.flop_per_s["bf16"]}, hbm_bytes_per_s=2 * H100.hbm_bytes_per_s)
    plain = replace(FORM, launch_s=0.0, split_s=0.0)
    assert plain.seconds(H100, "bf16", 700, 4096, 4096) == pytest.approx(
        2 * plain.seconds(twice, "bf16", 700, 4096, 4096)
    )
