"""Options of the engine that change what its steps cost."""

import pytest

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
