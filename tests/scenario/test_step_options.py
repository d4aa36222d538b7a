"""Options of the engine that change what its steps cost."""

import pytest

from simserve import simulate
from simserve.explain.explain import explain
from tests.scenario.conftest import Load, MessagesOf

EAGER = "engine: {name: vllm, enforce_eager: true}\n"


def test_without_graphs_explain_says_how_long_launches_take(load: Load, small: str) -> None:
    (plain,), (eager,) = explain(load(small)).pools, explain(load(small + EAGER)).pools
    (note,) = eager.step_notes
    assert note == "CUDA graphs: none; no step takes less than 25.6 ms of launches"  # 320 of 80 us
    assert plain.step_notes == ()
    assert [step.duration_s for step in eager.steps] == [max(step.duration_s, 0.0256) for step in plain.steps]
    waits_s = [step.duration_s - step.host_wait_s for step in eager.steps]
    assert waits_s == pytest.approx([step.duration_s - step.host_wait_s for step in plain.steps])


def test_launches_that_are_not_known_are_refused(load: Load, small: str, messages_of: MessagesOf) -> None:
    rule = (
        "engine.enforce_eager: the time to launch a kernel under engine ideal is not known, got true; "
        "set engine.eager_kernel_s, such as 4e-5"
    )
    ideal = small + "engine: {name: ideal, enforce_eager: true}\n"
    (message,) = messages_of(ideal)
    assert rule in message
    (setup,) = load(ideal, "engine.eager_kernel_s=1e-6").setups
    assert setup.step_cost().eager_ps == 320 * 10**6
    assert "did you mean" in messages_of(small + "engine: {name: vllm, enforce_eagr: true}\n")[0]
    assert "enforce_eager" in messages_of(small + "engine: {name: vllm, enforce_eager: 3}\n")[0]


def test_graphs_that_sglang_does_not_capture_need_no_memory(load: Load, small: str) -> None:
    plain, eager = (load(small + f"engine: {{name: sglang{more}}}\n") for more in ("", ", enforce_eager: true"))
    assert eager.setups[0].ledger.kv_bytes > plain.setups[0].ledger.kv_bytes
    cost = eager.setups[0].step_cost()
    assert cost.host_ps(1) == cost.eager_ps == 320 * 40 * 10**6


DEEPSEEK = "model: deepseek-v3\nweight_dtype: fp8_block\n"
DBO = "engine: {name: vllm, enable_dbo: true}\n"
RANKS = "cluster: {pools: [{parallel: {data: 16, expert: 16}}]}\n"


def wide(small: str, more: str) -> str:
    """Return 16 ranks on two nodes that share experts."""
    return small.replace("model: llama-3.1-8b\n", DEEPSEEK).replace("gpu: h100-sxm", "gpu: h200-sxm") + RANKS + more


def test_two_batches_hide_their_exchange(load: Load, small: str) -> None:
    (plain,), (split,) = (explain(load(wide(small, more))).pools for more in ("", DBO))
    pairs = [(a, b) for a, b in zip(plain.steps, split.steps, strict=True) if a.phase == "decode"]
    few, many = pairs[0], pairs[-1]
    assert few[0] == few[1]  # below 32 tokens a rank
    assert many[0].n_requests > 32 and many[1].exchange_s < many[1].duration_s
    assert many[0].duration_s - many[0].exchange_s < many[1].duration_s < many[0].duration_s
    assert [step for step in plain.steps if step.phase == "prefill"] == [
        step
        for step in split.steps
        if step.phase == "prefill"  # one rank alone computes a prompt
    ]
    assert [note.partition(":")[0] for note in split.step_notes] == ["Two-batch overlap"]


@pytest.mark.parametrize(
    "text", [DBO, DBO + RANKS.replace("16", "8"), wide("", DBO).replace("expert: 16", "expert: 16, exchange: gather")]
)
def test_two_batches_without_an_exchange_are_refused(small: str, messages_of: MessagesOf, text: str) -> None:
    rule = "engine.enable_dbo: has nothing to hide: no rank exchanges tokens with others by DeepEP or all_to_all"
    with_experts = small if text == DBO else small.replace("model: llama-3.1-8b\n", DEEPSEEK)
    (message,) = messages_of(with_experts.replace("gpu: h100-sxm", "gpu: h200-sxm") + text)
    assert rule in message and "set parallel.data over several nodes" in message


def test_thresholds_are_counts(small: str, messages_of: MessagesOf) -> None:
    more = "engine: {name: vllm, enable_dbo: true, dbo_decode_token_threshold: 0}\n"
    assert "dbo_decode_token_threshold" in messages_of(wide(small, more))[0]


@pytest.mark.parametrize(
    ("engine", "host_s"),
    [("{name: vllm}", 2.8e-5), ('{name: vllm, version: "0.12"}', 1.6e-5), ("{name: sglang, mask_token_s: 1e-3}", 1e-3)],
)
def test_masks_take_host_time_like_that_of_requests(load: Load, small: str, engine: str, host_s: float) -> None:
    text = small + f"engine: {engine}\n"
    plain, masked = (load(each) for each in (text, text.replace("workload:\n", "workload:\n  structured_frac: 0.25\n")))
    before, after = (each.setups[0].step_cost() for each in (plain, masked))
    more_ps = 64 * 0.25 * host_s * 1e12
    hidden_ps, exposed_ps = after.host_ps(64) - before.host_ps(64), after.sampled_ps(64) - before.sampled_ps(64)
    wanted = (more_ps, 0) if plain.setups[0].hides_host else (0, more_ps)
    assert (hidden_ps, exposed_ps) == pytest.approx(wanted, abs=2)
    assert after.mixed_ps(512, 512 * 513 // 2, 512, 0, 0, 0) == before.mixed_ps(512, 512 * 513 // 2, 512, 0, 0, 0)
    (note,) = explain(masked).pools[0].step_notes
    assert note == (
        f"Structured output: masks take {host_s * 0.25e6:.3g} us of host time a request and step, on average"
    )


@pytest.mark.parametrize("version", ["0.12", "0.19"])
def test_each_token_to_verify_is_masked(load: Load, small: str, version: str) -> None:
    more = "cluster: {pools: [{speculation: {kind: mtp, tokens: 3, acceptance: 0.7}}]}\n"
    text = small.replace("model: llama-3.1-8b\n", "model: glm-4.5-air\nweight_dtype: fp8\n").replace("h100", "h200")
    text += f'engine: {{name: vllm, version: "{version}"}}\n' + more.replace(
        "{speculation", "{parallel: {tensor: 4}, speculation"
    )
    costs = []
    for frac in ("", "  structured_frac: 1\n"):
        (setup,) = load(text.replace("workload:\n", f"workload:\n{frac}")).setups
        assert setup.speculation is not None
        costs.append(setup.speculation.running_cost(setup.step_cost()))
    lines_ps = [cost.tokens_ps(8) + cost.sampled_ps(8) + cost.decode_line(8)[0] for cost in costs]
    waits_ps = costs[1].host_ps(8) - costs[0].host_ps(8) or lines_ps[1] - lines_ps[0]
    assert waits_ps == pytest.approx(8 * 4 * setup.engine.mask_token_s * 1e12, abs=8)


def test_no_structured_output_is_a_share_of_zero(load: Load, small: str) -> None:
    absent, zero = (load(small.replace("workload:\n", f"workload:\n{more}")) for more in ("", "  structured_frac: 0\n"))
    assert explain(zero).pools == explain(absent).pools
    assert simulate(zero).summary["tpot_s"] == simulate(absent).summary["tpot_s"]


def test_a_share_of_structured_output_is_a_share(small: str, messages_of: MessagesOf) -> None:
    for value in ("1.5", "-0.1", "json"):
        (message,) = messages_of(small.replace("workload:\n", f"workload:\n  structured_frac: {value}\n"))
        assert "workload.structured_frac" in message
