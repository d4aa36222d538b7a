"""Expert layers: loads of routings worked by hand, never faster than the roofs, monotone, scaled by the GPU."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve import catalog
from simserve.cost.forms.moe import MoeLayer, _lognormal, load_of
from tests.cost.specs import H100

IDEAL = MoeLayer(
    launch_s=0.0,
    held_s=0.0,
    expert_s=0.0,
    flop_share=1.0,
    byte_share=1.0,
    tile_rows=0.0,
    step_s=0.0,
    traffic_share=1e12,
    remote_frac=0.0,
    sharpness=1e3,
)
"""Roofs alone: no traffic, no launches."""
REAL = MoeLayer(2e-5, 5e-8, 1e-7, 0.6, 0.85, 16.0, 3e-7, 0.9, 0.5, 1.4)
QWEN3: dict[str, Any] = {"hidden": 2048, "inter": 768, "top_k": 8, "n_experts": 128}
TOKENS = np.arange(0, 3000)


def test_balanced_routing_touches_all_experts_with_few_tokens() -> None:
    load = load_of("balanced", np.array([1, 8, 16, 1000]), 8, 128, 1)
    assert load.touched.tolist() == [8, 64, 128, 128]
    assert load.rows.tolist() == [8, 64, 128, 8000]


def test_random_routing_touches_82_of_128_experts_with_16_tokens_of_8() -> None:
    load = load_of("uniform", np.array([1, 16]), 8, 128, 1)
    assert load.touched == pytest.approx([8, 128 * (1 - (15 / 16) ** 16)])  # 82.4


def test_popular_experts_take_the_rows_and_leave_others_untouched() -> None:
    load = load_of("power_law_1.2", np.array([16.0]), 8, 128, 1)
    assert load.rows == pytest.approx([128])
    assert load.touched[0] < 82


def test_experts_drawn_by_popularity_are_those_that_draws_touch() -> None:
    """A million draws of tokens, each of which takes an expert or not by its popularity, touch as many."""
    popularity, rng = _lognormal(1.1, 4, 128), np.random.default_rng(1)
    drawn = [(rng.random((64, 128)) < popularity).any(axis=0).sum() for _ in range(1000)]
    assert load_of("lognormal_1.1", 64, 4, 128, 1).touched == pytest.approx(np.mean(drawn), rel=0.01)
    assert popularity.sum() == pytest.approx(4)
    assert 256 * popularity[-1] == pytest.approx(84.5, rel=0.03)  # as published for gpt-oss-120b: see its YAML


def test_popularity_without_spread_is_uniform_and_with_much_of_it_some_experts_are_certain() -> None:
    for n_gpus in (1, 8):
        even, uniform = (load_of(routing, TOKENS, 8, 128, n_gpus) for routing in ("lognormal_0", "uniform"))
        assert even.touched == pytest.approx(uniform.touched)
        assert even.rows == pytest.approx(uniform.rows)
    popularity = _lognormal(3.0, 8, 16)
    assert popularity.max() == 1 and popularity.sum() == pytest.approx(8)
    assert (np.diff(popularity) >= 0).all()


def test_a_lone_token_is_where_its_experts_are() -> None:
    load = load_of("power_law_1.01", np.array([1.0]), 8, 128, 1)
    assert (load.rows.tolist(), load.touched.tolist()) == ([8], [8])


def test_no_expert_gets_a_token_twice_however_popular() -> None:
    tokens = np.array([2.0, 64.0, 4096.0])
    assert (load_of("power_law_1.2", tokens, 2, 8, 8).rows <= tokens).all()


def test_pairs_that_rounding_leaves_without_a_place_go_where_nobody_went() -> None:
    # Two tokens choose 8 of 128 experts each: the most popular would get 0.67 of a pair, most of them less than half.
    assert load_of("power_law_1.01", np.array([2.0]), 8, 128, 1).touched == pytest.approx([16])


@pytest.mark.parametrize("routing", ["balanced", "uniform", "lognormal_1.1", "power_law_1.01", "power_law_1.2"])
@pytest.mark.parametrize("n_gpus", [1, 2, 8])
def test_no_gpu_has_more_than_there_is(routing: str, n_gpus: int) -> None:
    load = load_of(routing, TOKENS, 8, 128, n_gpus)
    assert (load.touched <= 128 / n_gpus).all()
    assert (load.rows <= 8 * TOKENS).all()
    assert (load.touched <= load.rows + 1e-9).all() or n_gpus > 1
    assert load.rows + load.remote_rows == pytest.approx(8 * TOKENS)


def test_the_busiest_gpu_has_more_than_its_share_unless_routing_is_balanced() -> None:
    rows = {routing: load_of(routing, 256, 8, 128, 8).rows for routing in ("balanced", "uniform")}
    assert rows["balanced"] == 256
    assert 256 < rows["uniform"] < 300
    for skewed in ("lognormal_1.1", "power_law_1.2"):
        assert load_of(skewed, np.array([256]), 8, 128, 8).rows[0] > rows["uniform"]


def test_few_tokens_read_the_experts_they_touch() -> None:
    # 64 experts of three matrices of 2,048 x 768 in 16 bits at 3.35 TB/s.
    seconds = IDEAL.seconds(H100, "bf16", 8, **QWEN3, routing="balanced")
    assert seconds == pytest.approx(64 * 3 * 2048 * 768 * 2 / 3.35e12)


def test_many_tokens_compute_for_six_flop_a_row_and_weight() -> None:
    seconds = IDEAL.seconds(H100, "fp8", 100_000, **QWEN3, routing="balanced")
    assert seconds == pytest.approx(800_000 * 6 * 2048 * 768 / 1.979e15)


@pytest.mark.parametrize(
    ("model", "gini"),
    [("deepseek-v3", 0.276), ("qwen3-next-80b-a3b", 0.276), ("granite-4.0-h-small", 0.168), ("qwen3-30b-a3b", 0.196)],
)
def test_popularity_of_experts_is_as_measured_of_models_of_the_kind(model: str, gini: float) -> None:
    """Figures of arXiv:2605.20982: 0.24 to 0.38 with latent attention and delta nets, 0.15 with Mamba-2; grouped heads
    lie between."""
    spec = catalog.load_model(model)
    assert spec.experts is not None
    popularity = np.sort(_lognormal(float(spec.expert_routing.removeprefix("lognormal_")), spec.experts.top_k, 512))
    ranks = np.arange(1, 513)
    assert 2 * ranks @ popularity / (512 * popularity.sum()) - 513 / 512 == pytest.approx(gini, abs=0.01)


@pytest.mark.parametrize("routing", ["balanced", "uniform", "lognormal_1.1", "power_law_1.2"])
def test_one_number_of_tokens_is_the_same_as_in_an_array(routing: str) -> None:
    several, one = (REAL.seconds(H100, "bf16", n, **QWEN3, expert=8, routing=routing) for n in ([3, 64, 500], 64))
    assert float(one) == several[1]


@pytest.mark.parametrize("layout", [{"tensor": 4}, {"expert": 4}])
def test_four_gpus_share_the_work(layout: dict[str, int]) -> None:
    alone = IDEAL.seconds(H100, "bf16", 64, **QWEN3, routing="balanced")
    assert IDEAL.seconds(H100, "bf16", 64, **QWEN3, routing="balanced", **layout) == pytest.approx(alone / 4)


@pytest.mark.parametrize("routing", ["balanced", "uniform", "lognormal_1.1"])
@pytest.mark.parametrize("expert", [1, 2, 8])
@pytest.mark.parametrize("form", [IDEAL, REAL])
def test_more_tokens_never_take_less(form: MoeLayer, routing: str, expert: int) -> None:
    seconds = form.seconds(H100, "bf16", TOKENS, **QWEN3, expert=expert, routing=routing)
    assert (np.diff(seconds) >= -1e-15).all()


@pytest.mark.parametrize("dtype", ["bf16", "fp8_block", "mxfp4"])
def test_no_layer_beats_the_data_sheet(dtype: str) -> None:
    for routing in ("balanced", "uniform", "power_law_1.2"):
        real = REAL.seconds(H100, dtype, TOKENS, **QWEN3, routing=routing)
        assert (real >= IDEAL.seconds(H100, dtype, TOKENS, **QWEN3, routing=routing)).all()


@pytest.mark.parametrize("expert", [1, 4])
def test_experts_without_rows_take_time_where_kernels_look_at_each(expert: int) -> None:
    # 128 experts, or 32 on each of four GPUs, at 0.1 µs.
    looks = replace(IDEAL, held_s=1e-7).seconds(H100, "bf16", 1, **QWEN3, expert=expert)
    assert looks - IDEAL.seconds(H100, "bf16", 1, **QWEN3, expert=expert) == pytest.approx(128 / expert * 1e-7)


def test_no_tokens_no_work() -> None:
    assert REAL.seconds(H100, "bf16", 0, **QWEN3) == 0


def test_twice_the_gpu_takes_half_the_time_of_the_roofs() -> None:
    fast = replace(
        H100,
        hbm_bytes_per_s=2 * H100.hbm_bytes_per_s,
        flop_per_s={name: 2 * peak for name, peak in H100.flop_per_s.items()},
    )
    tokens = TOKENS[1:]
    assert IDEAL.seconds(fast, "bf16", tokens, **QWEN3) == pytest.approx(
        IDEAL.seconds(H100, "bf16", tokens, **QWEN3) / 2
    )


def test_narrow_weights_compute_in_16_bits_but_fp8_where_the_card_has_it() -> None:
    assert H100.peak_flop_per_s("mxfp4") == H100.peak_flop_per_s("int4") == H100.flop_per_s["bf16"]
    assert H100.peak_flop_per_s("fp8_block") == H100.flop_per_s["fp8"]
    ampere = replace(H100, flop_per_s={"bf16": 3e14})
    assert ampere.peak_flop_per_s("fp8") == 3e14
