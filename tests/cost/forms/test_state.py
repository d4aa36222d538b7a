"""Forms of layers with a state: sums by hand."""

import pytest

from simserve import catalog
from simserve.cost.forms.state import PromptStates, StateDecode, StatePrefill

H100 = catalog.load_gpu("h100-sxm")
BYTES_PER_S = H100.hbm_bytes_per_s


def test_decoding_requests_read_and_write_their_states() -> None:
    assert StateDecode(5e-6, 0.8).seconds(H100, 4e6, 32) == pytest.approx(5e-6 + 2 * 32 * 4e6 / (BYTES_PER_S * 0.8))


def test_prompts_move_a_state_each_chunk_and_compute_chunks_in_order() -> None:
    form = StatePrefill(3e-5, 0.2, 2e-6, 10.0)
    many_s = form.seconds(H100, 1e6, 64 * 512, 512)
    assert many_s == pytest.approx(3e-5 + (512 + 64) * 2 * 4 * 1e6 / (BYTES_PER_S * 0.2), rel=1e-3)
    assert form.seconds(H100, 1e3, 32_768, 32_768) == pytest.approx(3e-5 + 512 * 2e-6, rel=1e-3)
    pairs = 64 * 512 * 513 / 2
    assert PromptStates(form, H100, 1e6).seconds(64 * 512, pairs, 64 * 512) == pytest.approx(many_s)
