"""Collectives: never under the wire, monotone, and scaled by the links."""

from dataclasses import replace
from math import log2

import numpy as np
import pytest

from simserve.cost.forms.collective import COLLECTIVES, AllReduce, Collective, for_group
from tests.cost.specs import H100

BYTES = np.concatenate([[0], 2.0 ** np.arange(8, 31)])
PLAIN = {"latency_s": 5e-6, "link_share": 0.5, "switch_latency_s": 0.0, "switch_wire_s": 1e-6}
SWITCHING = {**PLAIN, "switch_latency_s": 4e-6, "switch_wire_s": 2e-6}


def test_an_all_reduce_is_a_latency_and_the_bytes_out_and_in() -> None:
    # 450 MB over half of 450 GB/s is 2 ms; 2 * 3 / 4 of them cross the links of four GPUs.
    assert AllReduce(**PLAIN).seconds(H100, 4, 450e6) == pytest.approx(5e-6 + 3e-3)


def test_a_gather_moves_half_of_what_an_all_reduce_does() -> None:
    assert Collective(**PLAIN).seconds(H100, 4, 450e6) == pytest.approx(5e-6 + 1.5e-3)


def test_half_of_the_switching_latency_is_paid_at_its_wire_time() -> None:
    n_bytes = 2e-6 * 225e9  # two GPUs: a wire time of 2 µs
    assert AllReduce(**SWITCHING).seconds(H100, 2, n_bytes) == pytest.approx(5e-6 + 2e-6 + 2e-6)


@pytest.mark.parametrize("form", [AllReduce(**SWITCHING), Collective(**SWITCHING)])
@pytest.mark.parametrize("n_gpus", [2, 4, 8])
def test_more_bytes_take_longer_and_never_less_than_the_wire(form: Collective, n_gpus: int) -> None:
    seconds = form.seconds(H100, n_gpus, BYTES)
    wire = form.PASSES * (n_gpus - 1) / n_gpus * BYTES / (H100.link_bytes_per_s * form.link_share)
    assert (np.diff(seconds) > 0).all()
    assert (seconds >= wire).all()


def test_faster_links_save_wire_time_and_no_latency() -> None:
    fast = replace(H100, link_bytes_per_s=2 * H100.link_bytes_per_s)
    form = AllReduce(**PLAIN)
    assert form.seconds(fast, 8, BYTES) == pytest.approx(form.seconds(H100, 8, BYTES / 2))
    assert form.seconds(fast, 8, 0.0) == form.seconds(H100, 8, 0.0)


def test_one_gpu_has_nobody_to_talk_to() -> None:
    assert (AllReduce(**SWITCHING).seconds(H100, 1, BYTES) == 0).all()


def test_three_gpus_cost_between_two_and_four() -> None:
    forms = {2: AllReduce(**PLAIN), 4: AllReduce(**{**PLAIN, "latency_s": 9e-6})}
    assert for_group(forms, 3).latency_s == pytest.approx(5e-6 + 4e-6 * log2(3 / 2))
    assert for_group(forms, 4) is forms[4]
    assert for_group(forms, 16) is forms[4]
    assert for_group({4: forms[4]}, 2) is forms[4]


def test_every_operation_has_a_form() -> None:
    assert set(COLLECTIVES) == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
