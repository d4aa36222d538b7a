"""The processes of a group: all are asked, the slowest counts, and one that ends is an error rather than a wait."""

import os
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from simserve.errors import CalibrationError
from simserve.lab.kernels import torch_device
from simserve.lab.kernels.measure import NotTimed
from simserve.lab.kernels.torch_device import GpuGroup


def answering(rank: int, n_gpus: int, place: str, cold_bytes: float, pipe: Connection) -> None:
    """A process with repeats that take as many milliseconds as its rank says, and one shape that it refuses."""
    while True:
        try:
            shape = pipe.recv()
        except (EOFError, OSError):
            return
        if shape is None:
            pipe.send(1e-3 * (rank + 1))
        elif shape["op"] == "end" and rank == 1:
            os._exit(1)
        else:
            pipe.send(NotTimed("too much") if shape["op"] == "refused" else "nccl")


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuGroup]:
    monkeypatch.setattr(torch_device, "_rank", answering)
    group = GpuGroup(2, 1e6)
    yield group
    group.close()


def test_the_slowest_process_counts_and_a_refused_shape_is_one_that_is_not_timed(group: GpuGroup) -> None:
    kernel = group.prepare({"op": "all_reduce", "n_gpus": 2, "bytes": 8})
    assert kernel.name == "nccl"
    assert [kernel.repeat(), kernel.repeat()] == [2e-3, 2e-3]
    with pytest.raises(NotTimed, match="too much"):
        group.prepare({"op": "refused"})
    assert group.prepare({"op": "all_reduce"}).repeat() == 2e-3


def test_a_process_that_ends_is_an_error(group: GpuGroup) -> None:
    with pytest.raises(
        CalibrationError, match="2 GPUs must communicate, got a process that ended or waits; check NCCL"
    ):
        group.prepare({"op": "end"})
