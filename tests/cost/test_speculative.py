"""What proposing and verifying cost, on the roofline."""

from dataclasses import replace

import pytest

from simserve.catalog.layers import LayerGroup
from simserve.cost.model import StepShape, shape_ps
from simserve.cost.speculative import MedusaDrafting, ModelDrafting, one_layer, without_host
from simserve.cost.step import StepCost
from simserve.scenario.proposals import SpeculationSetup
from tests.cost.specs import H100, IDEAL, cost_of, step_cost

LLAMA = cost_of("llama-3.1-8b")
EAGLE = SpeculationSetup("eagle", (0.8,) * 3, 0.0)


def decode(n: int, context_tokens: int) -> StepShape:
    return StepShape(decode_requests=n, kv_tokens=n * context_tokens, sampled_rows=n)


def test_alone_verifying_five_tokens_takes_about_as_long_as_one() -> None:
    ngram = SpeculationSetup("ngram", (0.7,) * 4, 0.0).running_cost(LLAMA)
    plain, verified = shape_ps(LLAMA, decode(1, 1000)), shape_ps(ngram, decode(1, 1000))
    assert plain < verified < 1.02 * plain  # both read all weights once


def test_many_requests_pay_for_every_token_that_they_verify() -> None:
    ngram = SpeculationSetup("ngram", (0.7,) * 4, 0.0).running_cost(LLAMA)
    plain, verified = shape_ps(LLAMA, decode(1024, 1)), shape_ps(ngram, decode(1024, 1))
    assert 4.2 * plain < verified < 5 * plain  # bound by compute: five times the FLOP but for what was not full before


def test_a_step_is_a_line_in_the_keys() -> None:
    cost = EAGLE.running_cost(LLAMA)
    for n in (1, 7, 300):
        intercept_ps, slope_ps = cost.decode_line(n)
        for keys in (0, 1, 1000, 10**6):
            line_ps = cost.tokens_ps(n) + cost.sampled_ps(n) + intercept_ps + slope_ps * keys
            assert shape_ps(cost, StepShape(decode_requests=n, kv_tokens=keys, sampled_rows=n)) == line_ps


def test_proposing_nothing_costs_nothing() -> None:
    none = SpeculationSetup("ngram", (), 0.0).running_cost(LLAMA)
    for shape in (decode(1, 1000), decode(64, 300), StepShape(512, 512 * 513 // 2, 512, 8, 8000, 9)):
        assert shape_ps(none, shape) == shape_ps(LLAMA, shape)


SMALL_AND_LARGE = "llama-3.2-1b", "llama-3.1-8b"


def test_a_draft_model_takes_a_decode_step_of_its_own_for_each_token() -> None:
    small = cost_of("llama-3.2-1b")
    how = SpeculationSetup("draft_model", (0.7,) * 4, 0.0, small.shard.model)
    cost = how.running_cost(LLAMA)
    one_by_one = sum(shape_ps(small, decode(8, 1000 + i)) for i in range(4))
    assert cost.draft_ps(0, 0, 0, 8, 8 * 1000) == pytest.approx(one_by_one, rel=1e-9)
    ngram = SpeculationSetup("ngram", (0.7,) * 4, 0.0).running_cost(LLAMA)
    assert shape_ps(cost, decode(8, 1000)) == shape_ps(ngram, decode(8, 1000)) + cost.draft_ps(0, 0, 0, 8, 8000)


def test_the_windows_of_a_draft_count_what_they_attend_in_each_pass() -> None:
    small = replace(cost_of("llama-3.2-1b").shard.model, groups=(LayerGroup("windowed", 12, 64), LayerGroup("full", 4)))
    draft = step_cost(small, H100, IDEAL)
    cost = SpeculationSetup("draft_model", (0.7,) * 4, 0.0, small).running_cost(LLAMA)
    (slope_ps,), (intercept_ps, full_ps) = draft.window_slopes(8), draft.decode_line(8)
    alone_ps = draft.tokens_ps(8) + draft.sampled_ps(8) + intercept_ps
    later_ps = full_ps * 8 * (0 + 1 + 2 + 3)
    assert slope_ps > 0 and full_ps == pytest.approx(slope_ps / 3, abs=1)
    assert cost.draft_ps(0, 0, 0, 8, 8000) == 4 * (alone_ps + full_ps * 8000) + later_ps
    assert cost.draft_windows_ps(0, [], 8, [8 * 64]) == 4 * 8 * 64 * slope_ps
    assert cost.window_slopes(8) == (4 * slope_ps,)
    n = 512
    prompt_ps = draft.tokens_ps(n) + draft.prefill_ps(n, n * (n + 1) // 2, n)
    assert cost.draft_ps(n, n * (n + 1) // 2, n, 0, 0) == prompt_ps
    reads = [small.groups[0].reads(0, n)]
    assert cost.prefill_windows_ps(n, reads) == draft.prefill_windows_ps(n, reads) > 0


def test_windows_of_target_and_draft_each_cost_their_own_part() -> None:
    groups = LayerGroup("windowed", 8, 64), LayerGroup("full", 8)
    small, target_model = (replace(cost_of(name).shard.model, groups=groups, n_layers=16) for name in SMALL_AND_LARGE)
    target, draft = step_cost(target_model, H100, IDEAL), step_cost(small, H100, IDEAL)
    cost = SpeculationSetup("draft_model", (0.7,) * 2, 0.0, small).running_cost(target)
    alone = SpeculationSetup("ngram", (0.7,) * 2, 0.0).running_cost(target)
    assert cost.window_slopes(4) == (*alone.window_slopes(4), 2 * draft.window_slopes(4)[0])
    assert cost.prefill_windows_ps(9, [(9, 9), (0, 0)]) == target.prefill_windows_ps(9, [(9, 9)]) + (
        draft.prefill_windows_ps(9, [(0, 0)])
    )
    without = replace(small, groups=(LayerGroup("full", 16),))
    plain = SpeculationSetup("draft_model", (0.7,) * 2, 0.0, without).running_cost(target)
    later_ps = [how.decode_line(4)[0] - how.draft_line(4)[0] for how in (cost, plain)]
    assert later_ps[0] == later_ps[1]  # proposals that the target verifies attend none of the draft's windows


def test_proposals_attend_keys_of_their_own_where_attention_is_sparse() -> None:
    target = cost_of("deepseek-v3.2", "h200-sxm", weight_dtype="fp8_block", tensor=8)
    cost = SpeculationSetup("ngram", (0.7,) * 3, 0.0).running_cost(target)
    (intercept_ps, slope_ps), (alone_ps, alone_slope_ps) = cost.decode_line(4), target.decode_line(4)
    more_ps = target.tokens_ps(16) - target.tokens_ps(4) + target.sampled_ps(16) - target.sampled_ps(4)
    assert slope_ps >= alone_slope_ps
    assert intercept_ps == alone_ps + more_ps + 4 * 3 * (slope_ps + cost.query_ps)


def test_a_layer_reads_itself_its_joining_matrix_and_the_lm_head() -> None:
    drafting = EAGLE.running_cost(LLAMA).drafting
    assert isinstance(drafting, ModelDrafting)
    intercept_ps, _ = drafting.line(1)
    n_bytes = 3 * 2 * (218_103_808 + 2 * 4096**2 + 4096 * 128256)
    assert intercept_ps / 1e12 == pytest.approx(n_bytes / H100.hbm_bytes_per_s, rel=0.01)


def test_medusa_heads_read_a_square_matrix_and_an_lm_head_each() -> None:
    drafting = SpeculationSetup("medusa", (0.6,) * 3, 0.0).running_cost(LLAMA).drafting
    assert isinstance(drafting, MedusaDrafting)
    assert drafting.line(1)[1] == drafting.prompt_ps(512, 9, 9, 1) == 0
    n_bytes = 3 * 2 * (4096**2 + 4096 * 128256)
    assert drafting.line(1)[0] / 1e12 == pytest.approx(n_bytes / H100.hbm_bytes_per_s, rel=0.01)


def test_host_time_is_spent_once_a_step_and_request() -> None:
    slow_host = replace(LLAMA.engine, step_host_s=1e-3, request_host_s=1e-4)
    target = StepCost(LLAMA.shard, LLAMA.gpu, slow_host)
    for how in (EAGLE, SpeculationSetup("ngram", (0.7,) * 4, 0.0)):
        more_ps = shape_ps(how.running_cost(target), decode(8, 100)) - shape_ps(how.running_cost(LLAMA), decode(8, 100))
        assert more_ps == pytest.approx(10**9 + 8 * 10**8, abs=10)


def test_latent_attention_of_several_queries_is_bound_by_compute() -> None:
    target = cost_of("deepseek-v3", "h200-sxm", weight_dtype="fp8_block")  # all 128 heads on one GPU
    slopes = [SpeculationSetup("mtp", (0.8,) * k, 0.0).running_cost(target).key_floor_ps for k in (1, 3)]
    _, plain_slope = target.decode_line(8)
    assert slopes[1] == pytest.approx(2 * slopes[0], abs=1)
    assert slopes[1] > slopes[0] > plain_slope


def test_latent_vectors_in_fp8_are_multiplied_in_fp8_on_blackwell() -> None:
    def floor(gpu: str, kv_dtype: str) -> int:
        target = cost_of("deepseek-v3", gpu, weight_dtype="fp8_block", kv_dtype=kv_dtype)
        return SpeculationSetup("mtp", (0.8,), 0.0).running_cost(target).key_floor_ps

    assert floor("gb200", "fp8") == pytest.approx(floor("gb200", "bf16") / 2, abs=1)
    assert floor("h200-sxm", "fp8") == floor("h200-sxm", "bf16")


def test_a_layer_is_like_the_models_last() -> None:
    deepseek = cost_of("deepseek-v3", "h200-sxm", tensor=8, weight_dtype="fp8_block")
    layer = one_layer(deepseek.shard.model, "mtp")
    assert (layer.n_dense_layers, layer.n_moe_layers) == (0, 1)
    mtp = SpeculationSetup("mtp", (0.8,), 0.0).draft_cost(deepseek)
    assert mtp is not None
    alone = StepCost(mtp.shard, mtp.gpu, mtp.engine, kernels=mtp.kernels)
    merge_s = mtp.kernels.matmul_s("bf16", 7, 7168, 2 * 7168)
    assert mtp.tokens_s(7) == pytest.approx(alone.tokens_s(7) + merge_s)
    assert without_host(deepseek.engine).request_host_s == 0
