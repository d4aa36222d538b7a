"""The card at hand through PyTorch: kernels in CUDA graphs, timed by events, and a process on each GPU of a group."""

import multiprocessing
import warnings
from collections.abc import Callable, Collection
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from simserve.errors import CalibrationError
from simserve.interruptions import leave_interruptions_to_the_parent, uninterrupted
from simserve.lab.kernels.measure import NotTimed, TimedKernel
from simserve.lab.kernels.shapes import Shape
from simserve.lab.kernels.torch_kernels import Calls, kernel_of

REPLAY_S = 3e-3
"""Time of a replay: long enough that the start of a graph, some microseconds, is lost in it."""

MOST_NODES = 200
"""Most kernels in a graph."""

FLUSH_TIMES = 4
"""Bytes that are overwritten before a replay, and bytes of inputs, in sizes of the L2 cache."""

FP8_FROM = (8, 9)
"""Compute capability with fp8 tensor cores (Ada)."""

ANSWER_S = 120.0
"""Longest wait for a process of a group, which includes the start of PyTorch and NCCL."""


def open_device(l2_bytes: float) -> "TorchDevice":
    """Return the first CUDA device. Raises CalibrationError where PyTorch or a device is missing."""
    try:
        import torch
    except ImportError as error:
        rule = f"lab measure: PyTorch must be installed ({error})"
        raise CalibrationError(f"{rule}; pip install 'simserve[measure]'") from None
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        raise CalibrationError(
            f"lab measure: PyTorch must see a CUDA device, got none (PyTorch {torch.__version__}, "
            f"{f'CUDA {built}' if built else 'built for CPUs'}); run it on the card, and check nvidia-smi"
        )
    return TorchDevice(l2_bytes)


class TorchDevice:
    """The first GPU, and for collectives those beside it."""

    def __init__(self, l2_bytes: float) -> None:
        import torch

        facts = torch.cuda.get_device_properties(0)
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"HIP {torch.version.hip}"
        self.name = f"{facts.name}; PyTorch {torch.__version__}; {built}"
        self.n_gpus: int = torch.cuda.device_count()
        self.n_sms: int = facts.multi_processor_count
        self.memory_bytes: float = facts.total_memory
        has_fp8 = torch.version.cuda is not None and torch.cuda.get_device_capability(0) >= FP8_FROM
        self.dtypes: Collection[str] = ("bf16", "fp8") if has_fp8 else ("bf16",)
        self._cold_bytes = FLUSH_TIMES * l2_bytes
        self._group: GpuGroup | None = None

    def prepare(self, shape: Shape) -> TimedKernel:
        """Return the kernel of a shape. Raises NotTimed, and CalibrationError where the device has failed."""
        if "n_gpus" not in shape:
            return _prepared(shape, "cuda:0", self._cold_bytes)
        if self._group is None or self._group.n_gpus != shape["n_gpus"]:
            self.close()
            self._group = GpuGroup(shape["n_gpus"], self._cold_bytes)
        return self._group.prepare(shape)

    def close(self) -> None:
        """End the processes of a group."""
        if self._group is not None:
            self._group.close()
            self._group = None


def _prepared(shape: Shape, device: str, cold_bytes: float) -> TimedKernel:
    """Return a kernel in a CUDA graph on one GPU. Raises NotTimed, CalibrationError."""
    import torch

    try:
        torch.cuda.empty_cache()
        name, calls = kernel_of(shape, device, cold_bytes)
        return TimedKernel(name, _graph(calls, device, cold_bytes))
    except torch.cuda.OutOfMemoryError:
        raise NotTimed("the card has too little memory") from None
    except (RuntimeError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        if "CUDA error" in reason or "HIP error" in reason:  # nothing after it can be right
            raise CalibrationError(f"lab measure: {dict(shape)} must run, got {reason}; start again to go on") from None
        raise NotTimed(reason) from None


def _graph(calls: Calls, device: str, cold_bytes: float) -> Callable[[], float]:
    """Return what replays the calls, in turn, after the L2 cache was overwritten, and returns the seconds of one."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    flush = torch.empty(int(cold_bytes), dtype=torch.uint8, device=device)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # libraries choose kernels and allocate at their first calls, outside the graph
        for call in calls:
            call()
        start.record()
        calls[0]()
        end.record()
    torch.cuda.synchronize()
    n_calls = max(1, min(MOST_NODES, int(REPLAY_S / max(1e-6, start.elapsed_time(end) / 1e3))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's own thread looks at events meanwhile
        for i in range(n_calls):
            calls[i % len(calls)]()

    def repeat() -> float:
        flush.zero_()  # also keeps the card busy while the host sends the graph
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / n_calls

    return repeat


class GpuGroup:
    """Processes with a GPU each, which run the same collective at once; the slowest one counts."""

    def __init__(self, n_gpus: int, cold_bytes: float) -> None:
        self.n_gpus = n_gpus
        self._folder = TemporaryDirectory(prefix="simserve-")
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self._pipes: list[Connection] = []
        place = (Path(self._folder.name) / "group").as_uri()
        for rank in range(n_gpus):
            ours, theirs = context.Pipe()
            with uninterrupted():
                context.Process(target=_rank, args=(rank, n_gpus, place, cold_bytes, theirs), daemon=True).start()
            theirs.close()
            self._pipes.append(ours)

    def prepare(self, shape: Shape) -> TimedKernel:
        """Return a collective as all processes run it. Raises NotTimed, CalibrationError."""
        names = self._ask(dict(shape))
        return TimedKernel(str(names[0]), lambda: max(self._ask(None)))

    def close(self) -> None:
        """End the processes: each ends with its pipe."""
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()

    def _ask(self, question: dict[str, Any] | None) -> list[Any]:
        """Send a shape, or None for a repeat, to all processes, and return their answers."""
        answers: list[Any] = []
        with suppress(OSError, EOFError):
            for pipe in self._pipes:
                pipe.send(question)
            answers = [pipe.recv() if pipe.poll(ANSWER_S) else None for pipe in self._pipes]
        errors = [each for each in answers if isinstance(each, Exception)]
        if len(answers) < self.n_gpus or None in answers:
            rule = f"lab measure: {self.n_gpus} GPUs must communicate, got a process that ended or waits"
            raise CalibrationError(f"{rule}; check NCCL, or hide the GPUs with CUDA_VISIBLE_DEVICES=0")
        if errors:
            raise errors[0]
        return answers


def _rank(rank: int, n_gpus: int, place: str, cold_bytes: float, pipe: Connection) -> None:
    """Answer the questions of `GpuGroup._ask` on one GPU until the pipe is closed."""
    leave_interruptions_to_the_parent()  # which closes the pipe
    warnings.simplefilter("ignore")  # those of libraries, which speak to programmers
    import torch
    from torch import distributed

    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", init_method=place, rank=rank, world_size=n_gpus)
    meeting = torch.zeros(1, device=f"cuda:{rank}")
    kernel: TimedKernel | None = None
    with suppress(EOFError, OSError):
        while True:
            question = pipe.recv()
            try:
                if question is not None:
                    kernel = None
                    kernel = _prepared(question, f"cuda:{rank}", cold_bytes)
                    pipe.send(kernel.name)
                elif kernel is not None:
                    distributed.all_reduce(meeting)  # so that none waits for a late one inside the graph
                    pipe.send(kernel.repeat())
            except (NotTimed, CalibrationError) as error:
                pipe.send(error)
    distributed.destroy_process_group()
