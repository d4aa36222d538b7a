"""What a pipeline adds to a step: hidden states and residuals from stage to stage."""

import pytest

from simserve import catalog
from simserve.cost.comm import NIC_LATENCY_S
from tests.cost.specs import H100, IDEAL, step_cost

LLAMA = catalog.load_model("llama-3.1-70b")


def sends_s(tensor: int, pipeline: int, n_tokens: int) -> float:
    staged, whole = (step_cost(LLAMA, H100, IDEAL, tensor=tensor, pipeline=n) for n in (pipeline, 1))
    return float(staged.tokens_s(n_tokens) - whole.tokens_s(n_tokens))


def test_inside_a_node_stages_send_over_the_links() -> None:
    n_bytes = 100 * 8192 * 2 * 2  # in 16 bits, hidden states and residuals
    assert sends_s(1, 4, 100) == pytest.approx(3 * (H100.link_latency_s + n_bytes / H100.link_bytes_per_s))


def test_between_nodes_every_gpu_sends_its_part_and_collects_the_others() -> None:
    n_bytes = 100 * 8192 * 2 * 2
    sent_s = NIC_LATENCY_S + n_bytes / 8 / H100.nic_bytes_per_s
    collected_s = H100.link_latency_s + 7 / 8 * n_bytes / H100.link_bytes_per_s
    assert sends_s(8, 2, 100) == pytest.approx(sent_s + collected_s)


def test_stages_fill_one_node_after_another() -> None:
    far, near = (sends_s(*shape, 100) for shape in ((2, 8), (2, 4)))  # 16 GPUs: six hops near, one far; 8: three near
    one_near = near / 3
    collected_s = H100.link_latency_s + 1 / 2 * 100 * 8192 * 4 / H100.link_bytes_per_s
    one_far = NIC_LATENCY_S + 100 * 8192 * 4 / 2 / H100.nic_bytes_per_s + collected_s
    assert far == pytest.approx(6 * one_near + one_far)


def test_the_ranks_of_a_stage_fill_its_node_too() -> None:
    # Two stages of eight ranks are two nodes; of four ranks, one.
    model = catalog.load_model("qwen3-30b-a3b")
    n_bytes = 100 * model.hidden_size * 2 * 2
    for data, latency_s, bytes_per_s in (
        (4, H100.link_latency_s, H100.link_bytes_per_s),
        (8, NIC_LATENCY_S, H100.nic_bytes_per_s),
    ):
        staged, whole = (step_cost(model, H100, IDEAL, pipeline=n, data=data, expert=data) for n in (2, 1))
        assert float(staged.tokens_s(100) - whole.tokens_s(100)) == pytest.approx(latency_s + n_bytes / bytes_per_s)
