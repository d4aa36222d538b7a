"""The calls of PyTorch do the work that a row says, on inputs that a cache does not hold. No GPU is needed."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="needs the extra 'measure' (PyTorch)")

from simserve.errors import CalibrationError  # noqa: E402
from simserve.lab.kernels import torch_device  # noqa: E402
from simserve.lab.kernels.measure import NotTimed  # noqa: E402
from simserve.lab.kernels.torch_kernels import MOST_CALLS, kernel_of  # noqa: E402

HEADS = {"n_heads": 8, "n_kv_heads": 2, "head_dim": 64, "window": 0, "dtype": "bf16", "kv_dtype": "bf16"}


def flop_of(call: Any) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    def attention(queries: Any, keys: Any, *_: Any, **__: Any) -> int:
        return int(4 * math.prod(queries) * keys[2])  # masked pairs too, as PyTorch counts on a GPU

    on_cpu = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention}
    with FlopCounterMode(display=False, custom_mapping=on_cpu) as counter:
        call()
    return float(counter.get_total_flops())


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_a_product_is_of_its_rows_and_columns(dtype: str) -> None:
    _, calls = kernel_of({"op": "gemm", "dtype": dtype, "m": 5, "n": 48, "k": 32}, "cpu", 0)
    assert calls[0]().shape == (5, 48)
    assert calls[0]().dtype == torch.bfloat16
    assert flop_of(calls[0]) == 2 * 5 * 48 * 32


@pytest.mark.parametrize(("op", "n_queries"), [("prefill_attention", 16), ("decode_attention", 1)])
def test_attention_is_of_all_heads_and_keys(op: str, n_queries: int) -> None:
    _, calls = kernel_of({"op": op, "batch": 3, "tokens": 16, **HEADS}, "cpu", 0)
    assert calls[0]().shape == (3, 8, n_queries, 64)
    assert flop_of(calls[0]) == 4 * 3 * 8 * n_queries * 16 * 64


def test_prompts_are_attended_causally_and_written_to_the_cache() -> None:
    _, (call,) = kernel_of({"op": "prefill_attention", "batch": 3, "tokens": 16, **HEADS}, "cpu", 0)
    cache = call.args[0].fill_(7.0)
    attended = call()[:, :, 0]
    assert not (cache == 7.0).all(dim=-1).any()
    assert torch.equal(attended, cache[1][:, 0].repeat_interleave(4, dim=1))  # the first token attends itself alone


def test_decode_writes_the_last_key_and_value() -> None:
    _, (call,) = kernel_of({"op": "decode_attention", "batch": 3, "tokens": 16, **HEADS}, "cpu", 0)
    cache = call.args[0].fill_(7.0)
    call()
    assert [bool((cache[:, :, i] == 7.0).all()) for i in (0, 14, 15)] == [True, True, False]


@pytest.mark.parametrize("direction", ["to_host", "to_device"])
def test_a_copy_is_of_its_bytes(direction: str) -> None:
    _, calls = kernel_of({"op": "host_copy", "direction": direction, "bytes": 1000}, "cpu", 0)
    result = calls[0]()
    assert result.nbytes == 1000
    assert bool(result.any()) == (direction == "to_host")  # on a CPU both are alike: the card's side is random


@pytest.mark.parametrize(("bytes_each", "cold_bytes", "n_calls"), [(1000, 0, 1), (1000, 4500, 5), (1, 1e9, MOST_CALLS)])
def test_inputs_are_as_many_as_a_cache_does_not_hold(bytes_each: int, cold_bytes: float, n_calls: int) -> None:
    shape = {"op": "host_copy", "direction": "to_host", "bytes": bytes_each}
    assert len(kernel_of(shape, "cpu", cold_bytes)[1]) == n_calls


def test_weights_and_caches_differ_from_call_to_call() -> None:
    for shape in (
        {"op": "gemm", "dtype": "bf16", "m": 2, "n": 64, "k": 64},
        {"op": "decode_attention", "batch": 1, "tokens": 64, **HEADS},
    ):
        _, (one, two, *_) = kernel_of(shape, "cpu", 1e5)
        memory = [call.args[-1].data_ptr() for call in (one, two)]
        assert memory[0] != memory[1]


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_a_collective_is_of_its_bytes(op: str, tmp_path: Path) -> None:
    from torch import distributed

    distributed.init_process_group("gloo", init_method=(tmp_path / "group").as_uri(), rank=0, world_size=1)
    try:
        name, (call,) = kernel_of({"op": op, "n_gpus": 1, "bytes": 4096}, "cpu", 1e6)
        assert name == "gloo"
        assert max(each.nbytes for each in call.args) == 4096
        call()
    finally:
        distributed.destroy_process_group()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a stand-in for CUDA is asked to do, in order; its events are 2 ms apart."""
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("event")

        def synchronize(self) -> None:
            log.append("wait")

        def elapsed_time(self, end: "Event") -> float:
            return 2.0

    class Stream:
        def wait_stream(self, other: Any) -> None: ...

    class Graph:
        def replay(self) -> None:
            log.append("replay")

    @contextmanager
    def noting(text: str) -> Iterator[None]:
        log.append(f"begin {text}")
        yield
        log.append(f"end {text}")

    cuda = torch.cuda
    monkeypatch.setattr(cuda, "Event", Event)
    monkeypatch.setattr(cuda, "Stream", Stream)
    monkeypatch.setattr(cuda, "current_stream", Stream)
    monkeypatch.setattr(cuda, "stream", lambda stream: noting("warm-up"))
    monkeypatch.setattr(cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(cuda, "graph", lambda graph, capture_error_mode: noting("graph"))
    monkeypatch.setattr(cuda, "synchronize", lambda: log.append("wait"))
    return log


def test_kernels_are_replayed_in_a_graph_after_a_flush(log: list[str]) -> None:
    calls = [partial(log.append, "a"), partial(log.append, "b")]
    repeat = torch_device._graph(calls, "cpu", 1e4)
    n_calls = math.floor(torch_device.REPLAY_S / 2e-3)
    warm_up = ["begin warm-up", "a", "b", "event", "a", "event", "end warm-up", "wait"]
    assert log == [*warm_up, "begin graph", *("a", "b")[:n_calls], "end graph"]
    log.clear()
    assert repeat() == pytest.approx(2e-3 / n_calls)
    assert log == ["event", "replay", "event", "wait"]


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (torch.cuda.OutOfMemoryError("much"), NotTimed("the card has too little memory")),
        (RuntimeError("no kernel for this\nat line 3"), NotTimed("no kernel for this")),
        (RuntimeError("CUDA error: an illegal memory access"), CalibrationError("start again to go on")),
    ],
)
def test_an_error_of_a_kernel_is_of_its_shape_unless_the_card_failed(
    error: Exception, becomes: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(torch_device, "kernel_of", fails)
    with pytest.raises(type(becomes), match=str(becomes)):
        torch_device._prepared({"op": "gemm"}, "cpu", 1e4)
