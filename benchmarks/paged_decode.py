"""Time vLLM's attention over 16-token pages as a server has them: anywhere in memory, of unequal contexts.

    python -m benchmarks.paged_decode timings.csv               # all parts, 3 minutes on an H100
    python -m benchmarks.paged_decode timings.csv --parts read  # without vLLM

Needs PyTorch, Triton, an H100 and, but for `read`, an installed vLLM, whose FlashAttention 3 is called. Parts:

    check   the kernel against PyTorch in float32
    read    16-token pages read in order and shuffled, without attention: what memory and its TLB do
    decode  one layer by batch, context, order of pages and spread of contexts; bf16 and fp8 caches
    mixed   one layer of a step with a prompt's chunk, with and without decoding requests

Layers of a model are timed one after the other in one CUDA graph, each with its own cache, so none is found in the L2.
"""

import argparse
import csv
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import quantiles
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from benchmarks.context_spread import Ints, lengths_of

Row = tuple[Any, ...]

DEVICE = "cuda:0"
PAGE, WIDTH = 16, 128
POOL_BYTES = 54e9
"""KV cache of a server with a model of 8B."""
TIMED_LAYERS = 16
MOST_SPLITS = 32
"""vLLM's flash_attn_max_num_splits_for_cuda_graph."""
MODEL_TOKENS = 131_072
"""Longest context that vLLM's CUDA graphs are captured for."""
REPEATS, WARM_UP = 15, 3
FIELDS = "part,model,kv_dtype,batch,tokens,lengths,pages,splits,chunk,context,seconds,spread_frac,bytes_per_s"


@dataclass(frozen=True)
class Heads:
    """The heads and the layers of a model on one GPU."""

    n_heads: int
    n_kv_heads: int
    n_layers: int

    def page_bytes(self, value_bytes: int) -> int:
        """Return the bytes of a page of keys and values."""
        return 2 * PAGE * self.n_kv_heads * WIDTH * value_bytes


MODELS = {
    "8b": Heads(32, 8, 32),
    "70b tp 4": Heads(16, 2, 80),
    "70b tp 8": Heads(8, 1, 80),
    "64 heads": Heads(64, 8, 32),
}
LOADS = [
    *product((8,), (1024, 4096, 8192, 32768)),
    *product((16, 64), (2048, 6144)),
    *product((32,), (1024, 4096, 8192, 32768)),
    *product((128,), (1024, 3072, 8192)),
    *product((256,), (512, 1536, 4096)),
]
"""(requests, mean keys of each)."""
EQUAL = [("equal", pages) for pages in ("ordered", "runs of 8", "shuffled", "ordered")]
"""(lengths, pages); the first comes again at the end, which shows the noise."""
DRAWS = [*product((0.2, 0.5, 1), (1, 2, 3))]
PLACES = {
    "graph": [*EQUAL, ("cv 0.03 draw 1", "ordered"), *((f"cv {cv} draw {draw}", "ordered") for cv, draw in DRAWS)],
    "eager": [
        ("equal", "ordered"),
        ("cv 0.5 draw 1", "ordered"),
        ("cv 1 draw 1", "ordered"),
        ("cv 1 draw 1", "shuffled"),
    ],
}
"""(lengths, pages) with splits as in vLLM's CUDA graphs, or by FlashAttention's own rule."""
CHUNKS = ((512, 0), (2048, 0), (8192, 0), (512, 8192), (2048, 8192), (2048, 32768))
"""(tokens computed, tokens before them) of a prompt."""


def table_of(lengths: Ints, n_pages: int, order: str) -> Ints:
    """Return the pages of each request, `(batch, most pages)`."""
    run = {"ordered": n_pages, "runs of 8": 8, "shuffled": 1}[order]
    starts = np.random.default_rng(3).permutation(n_pages // run) * run
    pages = (starts[:, None] + np.arange(run)).ravel()
    counts = -(-lengths // PAGE)
    table = np.zeros((len(lengths), counts.max()), dtype=np.int64)
    for row, count, end in zip(table, counts, counts.cumsum(), strict=True):
        row[:count] = pages[end - count : end]
    return table


class Attention:
    """FlashAttention 3 as vLLM calls it, for one token of each request or as many as `new` says."""

    def __init__(
        self, heads: Heads, lengths: Ints, table: Ints, splits: str, dtype: Any, new: Ints | None = None
    ) -> None:
        new = np.ones_like(lengths) if new is None else new
        numbers = (lengths, table, np.append(0, new.cumsum()))
        self.lengths, self.table, self.starts = (torch.tensor(a, dtype=torch.int32, device=DEVICE) for a in numbers)
        self.n_splits, self.most_keys = (MOST_SPLITS, MODEL_TOKENS) if splits == "graph" else (0, int(lengths.max()))
        self.most_new, n = int(new.max()), len(lengths)
        self.scale = torch.ones(1, 1, device=DEVICE).expand(n, heads.n_kv_heads) if dtype.itemsize == 1 else None
        sizes = (n, self.most_new, int(lengths.max()), heads.n_heads, heads.n_kv_heads, WIDTH, WIDTH, dtype)
        options = (PAGE, 0, True, -1, -1, False, self.n_splits, None, 0)
        plan = torch.ops._vllm_fa3_C.get_scheduler_metadata
        self.plan = plan(*sizes, self.lengths, self.starts, None, None, None, None, *options)

    def __call__(self, queries: Any, keys: Any, values: Any) -> Any:
        """Return the attention of `(new tokens, heads, width)` over a layer's pages."""
        places = (self.starts, None, None, None, self.lengths, self.most_new, self.most_keys, self.table)
        scales = (self.scale, self.scale, self.scale, WIDTH**-0.5)
        options = (True, -1, -1, 0.0, True, self.plan, self.n_splits, None, 0, None, 1, 0, None)
        call = torch.ops._vllm_fa3_C.fwd
        return call(queries, keys, values, None, None, None, None, *places, *(None,) * 5, *scales, *options)[0]


def caches_of(pool: Any, heads: Heads) -> list[Any]:
    """Return the cache of each layer, `(pages, 2, tokens, KV heads, width)` as vLLM 0.24 has it."""
    n_pages = int(pool.numel() * pool.itemsize // heads.n_layers // heads.page_bytes(pool.itemsize))
    numbers = n_pages * heads.page_bytes(1)
    whole = pool[: heads.n_layers * numbers]
    return list(whole.view(heads.n_layers, n_pages, 2, PAGE, heads.n_kv_heads, WIDTH).unbind(0))


def seconds_of(run: Callable[[], Any], flush: Any) -> tuple[float, float]:
    """Return the median time of a CUDA graph of `run`, after the L2 was overwritten, and its quartiles' distance."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(WARM_UP + REPEATS):
        flush.zero_()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    low, middle, high = quantiles(times[WARM_UP:], n=4)
    return middle, (high - low) / middle


def layer_seconds(
    attend: Attention, heads: Heads, n_new: int, caches: Sequence[Any], flush: Any
) -> tuple[float, float]:
    """Return the time of one layer, and the relative distance of its quartiles."""
    queries = torch.randn(n_new, heads.n_heads, WIDTH, dtype=torch.bfloat16, device=DEVICE).to(caches[0].dtype)

    def layers() -> None:
        for cache in caches:
            attend(queries, *cache.unbind(1))

    seconds, spread = seconds_of(layers, flush)
    return seconds / len(caches), spread


def decode_rows(pool: Any, flush: Any, models: Iterable[str]) -> Iterator[Row]:
    """Yield a row for each batch of decoding requests that the cache holds."""
    for model, (splits, places) in product(models, PLACES.items()):
        heads = MODELS[model]
        caches = caches_of(pool, heads)[:: heads.n_layers // TIMED_LAYERS]
        for (batch, mean), (kind, order) in product(LOADS, places):
            lengths = lengths_of(kind, batch, mean)
            if (lengths // PAGE + 1).sum() > len(caches[0]):
                continue
            attend = Attention(heads, lengths, table_of(lengths, len(caches[0]), order), splits, pool.dtype)
            seconds, spread = layer_seconds(attend, heads, batch, caches, flush)
            rate = batch * mean * heads.page_bytes(pool.itemsize) / PAGE / seconds
            yield "decode", model, dtype_of(pool), batch, mean, kind, order, splits, 0, 0, seconds, spread, rate


def mixed_rows(pool: Any, flush: Any, models: Iterable[str]) -> Iterator[Row]:
    """Yield a row for each chunk of a prompt with n decoding requests, which vLLM computes in one call."""
    for model, (chunk, context), batch in product(models, ((0, 0), *CHUNKS), (0, 32, 128)):
        heads, mean = MODELS[model], 2048
        caches = caches_of(pool, heads)[:: heads.n_layers // TIMED_LAYERS]
        if batch + chunk:
            prompt = [chunk] if chunk else []
            new = np.array([1] * batch + prompt)
            lengths = np.array([mean] * batch + [context + each for each in prompt])
            table = table_of(lengths, len(caches[0]), "shuffled")
            attend = Attention(heads, lengths, table, "eager", pool.dtype, new)
            seconds, spread = layer_seconds(attend, heads, batch + chunk, caches, flush)
            case = (batch, mean, "equal", "shuffled", "eager", chunk, context)
            yield "mixed", model, dtype_of(pool), *case, seconds, spread, ""


def dtype_of(pool: Any) -> str:
    """Return the name of the cache's dtype as tables of timings have it."""
    return "bf16" if pool.itemsize == 2 else "fp8"


def check(pool: Any) -> None:
    """Compare the kernel with PyTorch, on shuffled pages of unequal contexts, twice with one plan."""
    heads, lengths = MODELS["8b"], lengths_of("cv 1 draw 1", 5, 700)
    caches = caches_of(pool, heads)
    table = table_of(lengths, len(caches[0]), "shuffled")
    queries = torch.randn(len(lengths), heads.n_heads, WIDTH, device=DEVICE).to(pool.dtype)
    for splits, cache in product(PLACES, (caches[0], caches[-1])):
        got = Attention(heads, lengths, table, splits, pool.dtype)(queries, *cache.unbind(1)).float()
        for query, out, pages, length in zip(queries.float(), got, table, lengths, strict=True):
            stored = cache.view(torch.uint8)[torch.tensor(pages, device=DEVICE)].view(cache.dtype)
            keys, values = stored.float().transpose(1, 2).flatten(0, 1)[:length].transpose(0, 1)
            group = heads.n_heads // heads.n_kv_heads
            scores = torch.einsum("hd,nhd->hn", query, keys.repeat_interleave(group, dim=1)) * WIDTH**-0.5
            wanted = torch.einsum("hn,nhd->hd", scores.softmax(dim=-1), values.repeat_interleave(group, dim=1))
            error = float((out - wanted).norm() / wanted.norm())
            assert error < (0.01 if pool.itemsize == 2 else 0.1), (splits, int(length), error)
    print(f"{dtype_of(pool)}: the kernel agrees with PyTorch", flush=True)


@triton.jit  # type: ignore[untyped-decorator]
def read_pages(pool, table, out, PER: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sum PER pages of SIZE numbers each."""
    program = tl.program_id(0)
    columns = tl.arange(0, SIZE)
    total = tl.zeros((SIZE,), dtype=tl.int32)
    for i in range(PER):
        page = tl.load(table + program * PER + i)
        total += tl.load(pool + page * SIZE + columns)
    tl.store(out + program * SIZE + columns, total)


def read_rows(pool: Any, flush: Any) -> Iterator[Row]:
    """Yield rows of 2 GB read in pages of 4, 8 and 32 KB, from a part of the pool (`context`, GB) or all of it."""
    numbers, per = pool.view(torch.int32), 16
    for kilobytes, pool_gb in product((4, 8, 32), (2, 8, 24, 54)):
        size = kilobytes * 256
        n_read = int(2e9 / 1024 / kilobytes) // per * per
        n_pages = min(int(pool_gb * 1e9), numbers.numel() * 4) // (kilobytes * 1024)
        for order in ("ordered", "shuffled", "ordered", "shuffled"):
            pages = np.arange(n_pages) if order == "ordered" else np.random.default_rng(3).permutation(n_pages)
            table = torch.tensor(pages[:n_read], dtype=torch.int64, device=DEVICE)
            n_programs = len(table) // per
            out = torch.empty(n_programs * size, dtype=torch.int32, device=DEVICE)

            def read(table: Any = table, out: Any = out, n: int = n_programs, size: int = size) -> None:
                read_pages[(n,)](numbers, table, out, PER=per, SIZE=size, num_warps=max(1, size // 1024))

            seconds, spread = seconds_of(read, flush)
            first = torch.stack([numbers[int(page) * size :][:size] for page in pages[:per]])
            assert torch.equal(first.sum(0, dtype=torch.int32), out[:size])
            rate = n_programs * (per + 1) * size * 4 / seconds
            yield "read", f"{kilobytes} KB", "", n_read, "", "", order, "", "", pool_gb, seconds, spread, rate


def as_fp8(pool: Any) -> Any:
    """Return the same memory with normal numbers in fp8."""
    stored = pool.view(torch.float8_e4m3fn)
    for part in stored.split(2**28):
        part.copy_(torch.randn(len(part), device=DEVICE))
    return stored


def open_card(pool_bytes: float) -> tuple[Any, Any]:
    """Load vLLM's kernel where it is installed; return a pool of random numbers, and bytes to overwrite the L2 with."""
    spec = find_spec("vllm")
    if spec is not None and spec.submodule_search_locations:
        (library,) = Path(next(iter(spec.submodule_search_locations))).glob("vllm_flash_attn/_vllm_fa3_C*.so")
        torch.ops.load_library(library)
    pool = torch.empty(int(pool_bytes) // 2, dtype=torch.bfloat16, device=DEVICE).normal_()
    return pool, torch.empty(200_000_000, dtype=torch.uint8, device=DEVICE)


def write_rows(table: Path, fields: str, rows: Iterable[Row]) -> None:
    """Append the rows to a table, each before the next is timed."""
    started = time.monotonic()
    with table.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not file.tell():
            writer.writerow(fields.split(","))
        for row in rows:
            writer.writerow([f"{cell:.5g}" if isinstance(cell, float) else cell for cell in row])
            file.flush()
    print(f"{row[0]}: {time.monotonic() - started:.0f} s", flush=True)


def main() -> None:
    """Write the timings of the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--parts", default="check,read,decode,mixed", help="parts, separated by commas")
    parser.add_argument("--models", default=",".join(MODELS))
    args = parser.parse_args()
    parts, models = args.parts.split(","), args.models.split(",")
    pool, flush = open_card(POOL_BYTES)
    if "read" in parts:
        write_rows(args.table, FIELDS, read_rows(pool, flush))
    for dtype in ("bf16", "fp8") if {"check", "decode", "mixed"} & set(parts) else ():
        cache = pool if dtype == "bf16" else as_fp8(pool)
        if "check" in parts:
            check(cache)
        if "decode" in parts:
            write_rows(args.table, FIELDS, decode_rows(cache, flush, models))
        if "mixed" in parts:
            write_rows(args.table, FIELDS, mixed_rows(cache, flush, models[:2]))


if __name__ == "__main__":
    main()
