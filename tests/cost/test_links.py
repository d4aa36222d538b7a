"""Links inside a node: a switch that adds up or not, a mesh, and PCIe without peer access."""

from dataclasses import replace

import pytest

from simserve import catalog
from simserve.cost.calibrated import Calibrated
from simserve.cost.calibration import calibration_path, read_calibration
from simserve.cost.comm import all_reduce_s, pass_s, send_s
from simserve.cost.forms.collective import Collective, for_group

VLLM = catalog.load_engine("vllm")
MI300X, RTX, H100, H800 = map(catalog.load_gpu, ("mi300x", "rtx-pro-6000", "h100-sxm", "h800-sxm"))


def kernels(card: str, timed: str, **changes: object) -> Calibrated:
    calibration = read_calibration(calibration_path(f"{timed}/vllm"))
    return Calibrated(replace(catalog.load_gpu(card), **changes), calibration, VLLM)  # type: ignore[arg-type]


def form(timed: str, op: str, n_gpus: int) -> Collective:
    calibration = read_calibration(calibration_path(f"{timed}/vllm"))
    forms = {int(key): each for (name, key), each in calibration.forms.items() if name == op}
    return for_group(forms, n_gpus)  # type: ignore[arg-type]


def test_in_a_mesh_two_gpus_share_one_link_of_seven() -> None:
    n_bytes, link = 64e6, 64e9
    for n_gpus in (2, 4, 8):
        wire_s = 2 * (n_gpus - 1) / n_gpus * n_bytes / ((n_gpus - 1) * link)
        assert all_reduce_s(MI300X, n_gpus, n_bytes) == pytest.approx(MI300X.link_latency_s + wire_s)
    assert send_s(MI300X, n_bytes) == pytest.approx(MI300X.link_latency_s + n_bytes / link)
    assert H100.group_bytes_per_s(2) == H100.group_bytes_per_s(8) == H100.link_bytes_per_s


def test_without_peer_access_bytes_cross_the_bus_twice() -> None:
    with_peers = replace(RTX, link_topology="switch")
    assert (RTX.n_crossings, with_peers.n_crossings) == (2, 1)
    assert all_reduce_s(RTX, 2, 1e6) == pytest.approx(2 * all_reduce_s(with_peers, 2, 1e6))
    assert pass_s(RTX, 4, 1e6) == pytest.approx(2 * pass_s(with_peers, 4, 1e6))
    assert send_s(RTX, 1e6) == pytest.approx(2 * send_s(with_peers, 1e6))


def test_without_peer_access_nccl_scatters_and_gathers_through_the_host() -> None:
    host, peers = (kernels("rtx-pro-6000", "rtx-pro-6000", link_topology=each) for each in ("host", "switch"))
    for n_gpus, n_bytes in ((2, 1e5), (2, 2e7), (4, 1e6)):
        halves_s = [
            form("rtx-pro-6000", op, n_gpus).seconds(RTX, n_gpus, n_bytes) for op in ("all_gather", "reduce_scatter")
        ]
        assert host.all_reduce_s(n_gpus, n_bytes) == pytest.approx(2 * sum(halves_s))
        assert host.all_gather_s(n_gpus, n_bytes) == pytest.approx(2 * halves_s[0])
        timed_s = form("rtx-pro-6000", "all_reduce", n_gpus).seconds(RTX, n_gpus, n_bytes)
        assert peers.all_reduce_s(n_gpus, n_bytes) == pytest.approx(timed_s)
    assert host.all_reduce_s(1, 1e6) == 0


def test_only_a_switch_that_adds_up_gives_larger_groups_a_larger_share() -> None:
    n_bytes = 64e6
    timed = form("h100-sxm", "all_reduce", 8)
    plain = replace(timed, link_share=form("h100-sxm", "all_reduce", 2).link_share)
    assert plain.link_share < timed.link_share
    mesh, sums = kernels("mi300x", "h100-sxm"), kernels("h800-sxm", "h100-sxm")
    assert mesh.all_reduce_s(8, n_bytes) == pytest.approx(plain.seconds(MI300X, 8, n_bytes))
    assert sums.all_reduce_s(8, n_bytes) == pytest.approx(timed.seconds(H800, 8, n_bytes))
    two = form("h100-sxm", "all_reduce", 2).seconds(replace(MI300X, link_bytes_per_s=64e9), 2, n_bytes)
    assert mesh.all_reduce_s(2, n_bytes) == pytest.approx(two)


def test_a_cards_own_timings_stand() -> None:
    a100 = catalog.load_gpu("a100-sxm")
    timed = read_calibration(calibration_path("a100-sxm/vllm"))
    quick = replace(form("a100-sxm", "all_reduce", 8), link_share=0.95)  # a larger share than two GPUs reach
    calibration = replace(timed, forms={**timed.forms, ("all_reduce", "8"): quick})
    assert Calibrated(a100, calibration, VLLM).all_reduce_s(8, 64e6) == quick.seconds(a100, 8, 64e6)
