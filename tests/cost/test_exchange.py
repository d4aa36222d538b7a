"""Experts and attention over several nodes: against published figures, and by hand."""

from dataclasses import replace
from math import comb
from typing import Any

import numpy as np
import pytest

from simserve import catalog
from simserve.catalog.layers import Experts
from simserve.cost.comm import (
    CHUNKED_HOP_S,
    CHUNKED_RING_S,
    CHUNKED_S,
    FLAGGED_HOP_S,
    FLAGGED_S,
    RING_S,
    NodeLink,
    all_reduce_over_nodes_s,
    gather_over_nodes_s,
)
from simserve.cost.exchange import (
    EXCHANGE_S,
    FORWARD_SHARE,
    LINK_SHARE,
    NIC_SHARE,
    SENT_BYTES,
    Exchange,
    ExchangeKernels,
)
from simserve.cost.overlap import TwoBatchCost
from simserve.cost.roofline import Roofline
from simserve.cost.shard import Shard
from tests.cost.specs import H100, IDEAL, step_cost

DEEPSEEK, QWEN = (catalog.load_model(name) for name in ("deepseek-v3", "qwen3-30b-a3b"))
LINK = NodeLink(50e9, 5e-6)
CARDS = NodeLink(H100.nic_bytes_per_s)
H800 = catalog.load_gpu("h800-sxm")
FP8, BF16 = 7168 * (1 + 4 / 128), 7168 * 2


def exchange(n_gpus: int, kernels: ExchangeKernels, experts: Experts | None = DEEPSEEK.experts) -> Exchange:
    assert experts is not None
    return Exchange(H800, LINK, experts, 7168, n_gpus, SENT_BYTES["fp8"], kernels)


@pytest.mark.parametrize(
    ("n_gpus", "dispatch_us", "combine_us"), [(16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369)]
)
def test_low_latency_kernels_take_what_deepep_publishes(n_gpus: int, dispatch_us: float, combine_us: float) -> None:
    """128 tokens a GPU of DeepSeek-V3 on H800 with 400 Gb/s each (DeepEP, docs/legacy.md, low-latency kernels)."""
    here = exchange(n_gpus, "low_latency")
    assert here.pass_s(128, FP8) == pytest.approx(dispatch_us * 1e-6, rel=0.08)
    assert here.pass_s(128, BF16) == pytest.approx(combine_us * 1e-6, rel=0.08)
    assert here.seconds(128) == here.pass_s(128, FP8) + here.pass_s(128, BF16)


@pytest.mark.parametrize(("n_gpus", "dispatch", "combine"), [(16, 43, 43), (32, 58, 57), (64, 51, 50)])
def test_normal_kernels_reach_the_bandwidth_that_deepep_publishes(n_gpus: int, dispatch: int, combine: int) -> None:
    """4,096 tokens a GPU; GB/s count a token's own node too (DeepEP, docs/legacy.md, normal kernels)."""
    here = exchange(n_gpus, "normal")
    to_nodes = here.far_nodes / (1 - 8 / n_gpus)
    for token_bytes, published in ((FP8, dispatch), (BF16, combine)):
        gb_per_s = 4096 * to_nodes * token_bytes / here.pass_s(4096, token_bytes) / 1e9
        assert gb_per_s == pytest.approx(published, rel=0.08)


def drawn(experts: Experts, n_parts: int, n_draws: int = 4000) -> float:
    """Return how many parts have an expert of a token, by drawing tokens."""
    generator, of_group = np.random.default_rng(1), experts.n_experts // experts.n_groups
    chosen = np.argsort(generator.random((n_draws, experts.n_groups)), axis=1) < experts.top_groups
    scores = generator.random((n_draws, experts.n_experts)) + np.repeat(chosen, of_group, axis=1)
    parts = np.argsort(-scores, axis=1)[:, : experts.top_k] * n_parts // experts.n_experts
    return float((np.diff(np.sort(parts, axis=1), axis=1) > 0).sum(axis=1).mean() + 1)


@pytest.mark.parametrize("limits", [(8, 4), (8, 3), (4, 1), (16, 8), (1, 1)])
@pytest.mark.parametrize("n_nodes", [2, 3, 4, 8, 16])
def test_nodes_and_gpus_of_a_token_are_those_of_random_draws(limits: tuple[int, int], n_nodes: int) -> None:
    experts = Experts(n_experts=768, top_k=8, expert_size=1, n_groups=limits[0], top_groups=limits[1])
    here = exchange(8 * n_nodes, "normal", experts)
    assert here.far_nodes == pytest.approx(drawn(experts, n_nodes) * (1 - 1 / n_nodes), rel=0.02)
    assert here.gpus == pytest.approx(drawn(experts, 8 * n_nodes), rel=0.02)


def test_an_exchange_by_hand() -> None:
    experts = Experts(n_experts=16, top_k=2, expert_size=1)  # on 16 GPUs of two nodes, one each
    few, many = (exchange(16, kernels, experts) for kernels in ("low_latency", "normal"))
    assert few.far_experts == 1 and few.near_experts == pytest.approx(2 * 7 / 16)
    assert many.far_nodes == pytest.approx(1 - comb(8, 2) / comb(16, 2)) and many.gpus == pytest.approx(2)
    launch_s = EXCHANGE_S + 5e-6
    far_s = 100 * 1000 / (50e9 * NIC_SHARE)
    assert few.pass_s(100, 1000) == pytest.approx(launch_s + far_s)
    assert few.pass_s(600, 1000) == pytest.approx(3 * launch_s + 6 * far_s)  # in three rounds
    near_s = 100 * 2 * 7 / 16 * 1000 / (200e9 * LINK_SHARE)
    fast = replace(few, link=NodeLink(50e12, 0.0))
    assert fast.pass_s(100, 1000) == pytest.approx(EXCHANGE_S + near_s)
    assert many.pass_s(1000, 1000) == pytest.approx(launch_s + 10 * far_s * many.far_nodes)
    forwarded = replace(many, link=NodeLink(50e12, 0.0))
    assert forwarded.pass_s(1000, 1000) == pytest.approx(EXCHANGE_S + 1000 * 2000 / (200e9 * FORWARD_SHARE))
    assert few.pass_s(0, 1000) == many.pass_s(0, 1000) == 0
    both = exchange(16, "by_batch", experts)
    assert [float(both.pass_s(n, 1000)) for n in (256, 257)] == [few.pass_s(256, 1000), many.pass_s(257, 1000)]
    assert both.buffer_bytes == few.buffer_bytes + many.buffer_bytes


def test_ranks_over_two_nodes_pay_for_experts_together_and_for_the_tokens_of_the_busiest() -> None:
    cost = step_cost(QWEN, H100, IDEAL, tensor=2, data=8, expert=16, node_link=LINK)
    near, n = step_cost(QWEN, H100, IDEAL, tensor=2, data=4, expert=8), 64
    assert near.exchange is None and near.exchange_ps(n) == 0
    assert cost.exchange is not None and cost.exchange.sent_bytes == 2
    experts_s = 48 * Roofline(H100, IDEAL).experts_s(cost.shard, 8 * n)
    assert cost.group_s(8 * n) == pytest.approx(experts_s)  # no gather of all tokens
    gathered_s = H100.link_latency_s + n * 2048 * 2 / 2 / H100.link_bytes_per_s
    assert cost.exchange_s(n) == pytest.approx(48 * (cost.exchange.seconds(n / 2) + gathered_s))
    assert cost.group_ps(8 * n, n) == pytest.approx((cost.group_s(8 * n) + cost.exchange_s(n)) * 1e12, rel=1e-6)
    assert cost.group_ps(8 * n, 2 * n) > cost.group_ps(8 * n, n)
    wide = step_cost(QWEN, H100, IDEAL, weight_dtype="fp8_block", data=144, expert=144)
    assert wide.shard.n_experts == 1 and wide.exchange is not None and wide.exchange.sent_bytes == SENT_BYTES["fp8"]


def test_two_batches_take_the_larger_of_compute_and_exchange() -> None:
    engine = replace(IDEAL, enable_dbo=True, dbo_decode_token_threshold=32, dbo_prefill_token_threshold=512)
    shape: dict[str, Any] = {"tensor": 2, "data": 8, "expert": 16}
    plain = step_cost(QWEN, H100, IDEAL, node_link=LINK, **shape)

    def split(link: NodeLink) -> TwoBatchCost:
        return TwoBatchCost(Shard(QWEN, **shape), H100, engine, node_link=link)

    for n, has_prompts, is_split in ((31, False, False), (32, False, True), (511, True, False), (512, True, True)):
        assert (split(LINK).overlapped_ps(n, has_prompts) > 0) == is_split
        assert split(LINK).group_ps(8 * n, n, False) == plain.group_ps(8 * n, n) and plain.overlapped_ps(n, False) == 0
    n, own_ps = 65, 5 * 10**9
    for link, is_exchange in ((LINK, False), (replace(LINK, bytes_per_s=1e8), True)):
        cost = split(link)
        whole_ps, halves_ps = cost.tokens_ps(n), 2 * cost.tokens_ps(33)
        experts_ps = 2 * 48 * Roofline(H100, IDEAL).experts_s(cost.shard, 260) * 1e12  # of 8 times 65 tokens
        computed_ps = own_ps + halves_ps - whole_ps + experts_ps
        exchanged_ps = 2 * cost.exchange_s(33) * 1e12
        assert (exchanged_ps > computed_ps) == is_exchange
        assert own_ps + cost.group_ps(8 * n, n, True) == pytest.approx(computed_ps, rel=1e-6)
        assert cost.overlapped_ps(n, False) == pytest.approx(exchanged_ps, rel=1e-6)
    eager = TwoBatchCost(Shard(QWEN, **shape), H100, replace(engine, enforce_eager=True, eager_kernel_s=1.0))
    assert eager.overlapped_ps(n, False) == 2 * eager.eager_ps  # each half is launched
    sglang = TwoBatchCost(Shard(QWEN, **shape), H100, replace(IDEAL, enable_dbo=True), node_link=LINK)
    assert sglang.overlapped_ps(1, False) == 0 < sglang.overlapped_ps(2, True)


def test_an_all_to_all_sends_nvfp4_over_the_links_of_a_node() -> None:
    shape = {"weight_dtype": "nvfp4", "data": 4, "expert": 4}
    cost, plain = (step_cost(QWEN, H100, IDEAL, **shape, **how) for how in ({"exchange": "all_to_all"}, {}))
    n, n_copies = 64, 8 * 3 / 4  # of its 8 experts, a quarter is on its own GPU
    assert cost.exchange is not None and cost.exchange.n_nodes == 1 and plain.exchange is None
    copies_bytes = n * n_copies * 2048 * (0.5 + 1 / 16 + 2)  # there in 4 bits with scales, back in 16
    sent_s = 2 * (EXCHANGE_S + H100.link_latency_s) + copies_bytes / (H100.link_bytes_per_s * LINK_SHARE)
    assert cost.exchange_s(n) == pytest.approx(48 * sent_s)
    assert cost.group_s(4 * n) == pytest.approx(48 * Roofline(H100, IDEAL).experts_s(cost.shard, 4 * n))
    assert cost.exchange_s(0) == 0


def test_ranks_that_quantize_first_gather_4_bits_and_scatter_16() -> None:
    shape = {"weight_dtype": "nvfp4", "data": 4, "expert": 4}
    plain, small = (
        step_cost(QWEN, H100, replace(IDEAL, gathers_quantized=dtypes), **shape) for dtypes in ((), ("nvfp4",))
    )
    n_bytes = 64 * 2048 * (2 - 0.5 - 1 / 16)
    saved_s = 48 * 3 / 4 * n_bytes / H100.link_bytes_per_s
    assert plain.group_s(64) - small.group_s(64) == pytest.approx(saved_s)


PUBLISHED_US = {1: 38, 4: 39, 16: 42, 64: 47, 128: 52, 256: 66, 512: 77, 1024: 89, 2048: 102, 4096: 120, 8192: 147}
"""Medians of all-reduces of two nodes of eight GPUs by KiB (docs/validation.md names the tests)."""


def test_an_all_reduce_over_two_nodes_takes_what_is_published() -> None:
    n_bytes = 1024 * np.array(list(PUBLISHED_US))
    us = 1e6 * all_reduce_over_nodes_s(H100, CARDS, 2, n_bytes)
    assert us == pytest.approx(np.array(list(PUBLISHED_US.values())), rel=0.12)
    assert (np.diff(us) > 0).all()


def test_messages_between_nodes_grow_with_their_number_and_the_latency_of_their_link() -> None:
    two_s, four_s, sixteen_s = (all_reduce_over_nodes_s(H100, CARDS, n, 1024) for n in (2, 4, 16))
    assert four_s - two_s == pytest.approx(10e-6, rel=0.01)  # 10 and 11 us in issue 309 of nccl-tests
    assert sixteen_s == pytest.approx(62e-6, rel=0.15)  # issue 1469 of nccl
    of_cloud = replace(CARDS, latency_s=25e-6)  # an adapter that answers 15 us later, twice
    assert all_reduce_over_nodes_s(H100, of_cloud, 2, 1024) == pytest.approx(two_s + 30e-6)
    assert all_reduce_over_nodes_s(H100, replace(CARDS, latency_s=0.0), 2, 1024) == pytest.approx(two_s)


def test_large_all_reduces_over_nodes_pay_for_their_bytes_in_each_node_and_between() -> None:
    n_bytes = 2.0**30
    for link in (CARDS, NodeLink(1e9)):
        near_s, far_s = 2 * 7 / 8 * n_bytes / H100.link_bytes_per_s, n_bytes / 8 / link.bytes_per_s
        constant_s = CHUNKED_S + 2 * CHUNKED_HOP_S
        assert all_reduce_over_nodes_s(H100, link, 2, n_bytes) == pytest.approx(constant_s + near_s + far_s)
    few_bytes = 2.0**16  # words with flags are twice as long on a slow link
    few_s = all_reduce_over_nodes_s(H100, NodeLink(1e9), 2, few_bytes) - FLAGGED_S - 2 * FLAGGED_HOP_S
    assert few_s == pytest.approx(2 * (2 * 7 / 8 * few_bytes / H100.link_bytes_per_s + few_bytes / 8 / 1e9))


def test_a_tensor_parallel_group_over_nodes_pays_for_its_all_reduces_between_them() -> None:
    llama, n = catalog.load_model("llama-3.1-70b"), 100
    over_two = step_cost(llama, H100, IDEAL, tensor=16, node_link=LINK)
    in_one = step_cost(llama, replace(H100, gpus_per_node=16), IDEAL, tensor=16)
    n_bytes = n * 8192 * 2
    near_s = in_one.kernels.all_reduce_s(16, n_bytes)
    far_s = all_reduce_over_nodes_s(H100, LINK, 2, n_bytes)
    assert over_two.tokens_s(n) - in_one.tokens_s(n) == pytest.approx(80 * 2 * (far_s - near_s))


GATHERED_US = {1: 34, 4: 32, 16: 35, 64: 40, 128: 39, 256: 46, 512: 49, 1024: 61, 2048: 77, 4096: 86, 8192: 98}
"""Medians of all-gathers and reduce-scatters of two nodes of eight GPUs by KiB (docs/validation.md names the tests)."""


def test_a_gather_over_two_nodes_takes_what_is_published() -> None:
    n_bytes = 1024 * np.array(list(GATHERED_US))
    us = 1e6 * gather_over_nodes_s(H100, CARDS, 2, n_bytes)
    assert us == pytest.approx(np.array(list(GATHERED_US.values())), rel=0.16)
    assert (np.diff(us) > 0).all()
    large_bytes = 2.0**30
    bytes_s = 7 / 8 * large_bytes / H100.link_bytes_per_s + large_bytes / 2 / 8 / CARDS.bytes_per_s
    assert gather_over_nodes_s(H100, CARDS, 2, large_bytes) == pytest.approx(CHUNKED_RING_S + bytes_s)
    later = replace(CARDS, latency_s=25e-6)
    assert gather_over_nodes_s(H100, later, 4, 1024) == pytest.approx(RING_S * 31 / 15 + 1024 / 40e9 + 3 * 15e-6)


def test_a_gather_brings_as_many_tokens_of_each_gpu_as_the_busiest_has() -> None:
    here, n = exchange(16, "gather"), np.array([0, 3, 400])
    gathered_s = gather_over_nodes_s(H800, LINK, 2, n * 16 * BF16)
    assert here.seconds(n) == pytest.approx(np.array([0, 2, 2]) * gathered_s)
    assert here.buffer_bytes == 0
    assert here.seconds(3) > exchange(16, "low_latency").seconds(3)


def test_stages_of_two_nodes_each_send_between_nodes_once() -> None:
    llama, n = catalog.load_model("llama-3.1-70b"), 100
    staged, whole = (step_cost(llama, H100, IDEAL, tensor=16, pipeline=stages, node_link=LINK) for stages in (2, 1))
    n_bytes = n * 8192 * 2 * 2
    sent_s = LINK.latency_s + n_bytes / 16 / LINK.bytes_per_s
    near_s = H100.link_latency_s + 7 / 8 * n_bytes / H100.link_bytes_per_s
    gathered_s = near_s + LINK.latency_s + n_bytes / 8 / 2 / LINK.bytes_per_s
    assert staged.tokens_s(n) - whole.tokens_s(n) == pytest.approx(sent_s + gathered_s)
