"""Time whole decode steps of Llama-3.1-8B on an H100, and what heat and power do to long runs.

    python -m benchmarks.decode_step steps.csv   # 3 minutes

Needs PyTorch and an installed vLLM, whose FlashAttention 3 is called. Parts:

    step   a CUDA graph of all matrices, attention and the cache's writes, in bf16, by batch and contexts
    long   the largest step for 60 s without a pause
    burst, busy  the matrices of 8,192 prompt tokens after a rest and for 20 s without a pause, in bf16 and fp8
"""

import argparse
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.context_spread import lengths_of
from benchmarks.paged_decode import (
    DEVICE,
    MODELS,
    PAGE,
    POOL_BYTES,
    WIDTH,
    Attention,
    Row,
    caches_of,
    open_card,
    seconds_of,
    table_of,
    write_rows,
)

FIELDS = "part,dtype,at_s,batch,tokens,lengths,pages,seconds,spread_frac,sm_mhz,watt,celsius"
SIZES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
"""(n, k) of the matrices of a layer: queries, keys and values; output; gate and up; down."""
VOCABULARY = 128_256
LOADS = [
    *product((8,), (1024, 8192, 32768)),
    *product((32,), (512, 2048, 4096, 8192, 12288)),
    *product((128,), (512, 1024, 2048, 3072)),
    *product((256,), (512, 1024, 1536)),
]
PLACES = (
    ("equal", "ordered"),
    ("equal", "shuffled"),
    ("cv 0.2 draw 1", "shuffled"),
    ("cv 0.5 draw 1", "shuffled"),
    ("cv 1 draw 1", "shuffled"),
)
LONGEST = (128, 3072), ("cv 1 draw 1", "shuffled")
LONG_S, BUSY_S, REST_S = 60.0, 20.0, 5.0
PROMPT_TOKENS = 8192


def weight(n: int, k: int) -> Any:
    """Return a random matrix that keeps the size of what it multiplies."""
    return torch.randn(n, k, dtype=torch.bfloat16, device=DEVICE) * k**-0.5


class Step:
    """A decode step in bf16 on one GPU."""

    def __init__(self, caches: Sequence[Any]) -> None:
        self.caches, self.layers = caches, [tuple(weight(*size) for size in SIZES) for _ in caches]
        self.head = weight(VOCABULARY, 4096)

    def __call__(self, x: Any, attend: Attention, slots: tuple[Any, Any]) -> Any:
        """Return the next tokens, from embeddings `(batch, 4096)` and the (page, place) of each new key and value."""
        linear, norm = torch.nn.functional.linear, torch.nn.functional.rms_norm
        for cache, (qkv, out, up, down) in zip(self.caches, self.layers, strict=True):
            heads = linear(norm(x, (4096,)), qkv).view(-1, 48, WIDTH)
            keys, values = cache.unbind(1)
            keys.index_put_(slots, heads[:, 32:40])
            values.index_put_(slots, heads[:, 40:])
            x = x + linear(attend(heads[:, :32], keys, values).reshape(-1, 4096), out)
            gate, both = linear(norm(x, (4096,)), up).chunk(2, dim=-1)
            x = x + linear(torch.nn.functional.silu(gate) * both, down)
        return linear(norm(x, (4096,)), self.head).argmax(dim=-1)


def step_rows(pool: Any, flush: Any) -> Iterator[Row]:
    """Yield a row for each batch, and after the longest step those of a long run."""
    heads = MODELS["8b"]
    caches = caches_of(pool, heads)
    step = Step(caches)
    for (batch, mean), (kind, order) in product(LOADS, PLACES):
        lengths = lengths_of(kind, batch, mean)
        table = table_of(lengths, len(caches[0]), order)
        attend = Attention(heads, lengths, table, "graph", pool.dtype)
        last = lengths - 1
        slots = (table[np.arange(batch), last // PAGE], last % PAGE)
        places = tuple(torch.tensor(each, device=DEVICE) for each in slots)
        x = torch.randn(batch, 4096, dtype=torch.bfloat16, device=DEVICE)

        def run(x: Any = x, attend: Attention = attend, places: Any = places) -> Any:
            return step(x, attend, places)

        case = batch, mean, kind, order
        yield "step", "bf16", 0, *case, *seconds_of(run, flush), "", "", ""
        if ((batch, mean), (kind, order)) == LONGEST:
            for at_s, seconds, state in without_pause(run, LONG_S, 2.0):
                yield "long", "bf16", at_s, *case, seconds, "", *state


def busy_rows(dtype: str) -> Iterator[Row]:
    """Yield the time of one layer's matrices in short runs after rests, then in a long one."""
    linear, scaled, fp8 = torch.nn.functional.linear, torch._scaled_mm, torch.float8_e4m3fn
    copies = [[weight(*size) for size in SIZES] for _ in range(4)]
    inputs = [torch.randn(PROMPT_TOKENS, k, dtype=torch.bfloat16, device=DEVICE) for _, k in SIZES]
    if dtype == "fp8":
        copies = [[each.to(fp8).t() for each in copy] for copy in copies]
        inputs = [each.to(fp8) for each in inputs]
    one = torch.ones((), device=DEVICE)

    def run() -> None:
        for x, each in [pair for copy in copies for pair in zip(inputs, copy, strict=True)]:
            if dtype == "bf16":
                linear(x, each)
            else:
                scaled(x, each, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)

    for part, duration_s, each_s in (("burst", 0.01, 0.01),) * 5 + (("busy", BUSY_S, 1.0),):
        time.sleep(REST_S / 5)
        for at_s, seconds, state in without_pause(run, duration_s, each_s):
            yield part, dtype, at_s, PROMPT_TOKENS, 0, "", "", seconds / len(copies), "", *state


def without_pause(run: Callable[[], Any], duration_s: float, each_s: float) -> Iterator[tuple[float, float, list[str]]]:
    """Yield (seconds since the start, median time, clock, power and temperature) of each part of a run."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    started = time.monotonic()
    while time.monotonic() - started < duration_s:
        part, times = time.monotonic(), []
        while time.monotonic() - part < each_s:
            events = [torch.cuda.Event(enable_timing=True) for _ in range(11)]
            for event in events:
                event.record()
                graph.replay()
            events[-1].synchronize()
            times += [a.elapsed_time(b) / 1e3 for a, b in pairwise(events)]
        query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw,temperature.gpu", "--format=csv,noheader,nounits"]
        graph.replay()  # the card stays busy meanwhile
        state = subprocess.run(query, capture_output=True, text=True).stdout.strip().split(", ")
        yield time.monotonic() - started, median(times), state


def main() -> None:
    """Write the timings of all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    args = parser.parse_args()
    for dtype in ("bf16", "fp8"):
        write_rows(args.table, FIELDS, busy_rows(dtype))
    write_rows(args.table, FIELDS, step_rows(*open_card(POOL_BYTES)))


if __name__ == "__main__":
    main()
