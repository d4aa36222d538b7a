"""Print what unequal contexts cost decode attention: as timed on an H100, and by the rule that cuts contexts for SMs.

python -m benchmarks.context_spread   # tables of docs/calibration.md, from calibration/h100-sxm/measured/
"""

import heapq
import math
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simserve import catalog
from simserve.cost.forms.attention import SM_SPARE
from simserve.lab.kernels.attention import SM_BYTES_PER_S

Ints = NDArray[np.int64]

TIMED = Path(__file__).parents[1] / "calibration/h100-sxm/measured/paged_decode.csv.gz"
CASE = ["model", "kv_dtype", "batch", "tokens"]
KV_HEADS = {"8b": 8, "64 heads": 8, "70b tp 4": 2, "70b tp 8": 1}

SHORTEST_S = 60e-6
"""Layers below are mostly launch."""

H100 = catalog.load_gpu("h100-sxm")
SMS = H100.n_sms
MOST_PIECES = 32
TILE = {"bf16": 64, "fp8": 160}
"""Keys of a tile, the unit of pieces: those that fit the timings best."""
SM_SHARE = {dtype: bytes_per_s * SMS / H100.hbm_bytes_per_s for dtype, bytes_per_s in SM_BYTES_PER_S.items()}
"""Most of the bandwidth that an SM reads with, in shares of all SMs': fitted to the timings."""


def lengths_of(kind: str, batch: int, mean: int) -> Ints:
    """Return the keys of each request, lognormal or equal, whose sum is `batch * mean` whatever the kind."""
    if kind == "equal":
        return np.full(batch, mean, dtype=np.int64)
    _, cv, _, draw = kind.split()
    drawn = np.random.default_rng(int(draw)).lognormal(sigma=math.sqrt(math.log(1 + float(cv) ** 2)), size=batch)
    lengths: Ints = np.maximum(16, np.floor(drawn * batch * mean / drawn.sum())).astype(np.int64)
    lengths[lengths.argmax()] += batch * mean - lengths.sum()
    return lengths


def makespan(lengths: Ints, n_kv_heads: int, dtype: str) -> float:
    """Return the time of all pieces, in tiles at the full bandwidth, if SMs take them in turn and share it."""
    n_tiles = -(-lengths // TILE[dtype])
    most = math.ceil(n_tiles.sum() * SM_SPARE * n_kv_heads / SMS)
    pieces: list[float] = []
    for n in n_tiles.tolist():
        each = math.ceil(n / min(MOST_PIECES, math.ceil(n / most)))
        cut = [min(each, n - start) + 1.0 for start in range(0, n, each)]  # a tile of time for its start and end
        pieces += cut * n_kv_heads
    pieces.reverse()
    running: list[float] = []  # work of an SM at which its piece ends
    time, work = 0.0, 0.0
    while pieces or running:
        while pieces and len(running) < SMS:
            heapq.heappush(running, work + pieces.pop())
        time += (running[0] - work) / min(SM_SHARE[dtype] / SMS, 1 / len(running))
        work = running[0]
        while running and running[0] <= work + 1e-9:
            heapq.heappop(running)
    return time


def decode_rows() -> pd.DataFrame:
    """Return the rows of layers that take long enough, with their time relative to equal contexts in order."""
    table = pd.read_csv(TIMED)
    rows = table[table["part"] == "decode"].astype({"batch": int, "tokens": int})
    first = (rows["lengths"] == "equal") & (rows["pages"] == "ordered") & (rows["splits"] == "graph")
    base = rows[first].groupby(CASE)["seconds"].first().rename("equal_s")
    rows = rows.join(base, on=CASE)
    return rows[rows["equal_s"] > SHORTEST_S].assign(ratio=rows["seconds"] / rows["equal_s"])


def main() -> None:
    """Print the tables."""
    rows = decode_rows()
    graph = rows[rows["splits"] == "graph"]
    pages = graph[graph["lengths"] == "equal"]
    again = pages[pages["pages"] == "ordered"].groupby(CASE)["ratio"].last()
    print(f"the same again: standard deviation {again.std():.4f}")
    print(pages.groupby(["kv_dtype", "pages"])["ratio"].describe()[["mean", "min", "max"]].round(3).to_string())
    spread = graph[(graph["pages"] == "ordered") & (graph["lengths"] != "equal")]
    spread = spread.assign(cv=spread["lengths"].str.split().str[1].astype(float))
    print(spread.groupby(["kv_dtype", "cv"])["ratio"].describe()[["count", "mean", "min", "max"]].round(3).to_string())
    for column in ("model", "batch"):
        part = spread[spread["cv"] >= 0.2]
        print(part.pivot_table(index=column, columns=["kv_dtype", "cv"], values="ratio").round(3).to_string())
    for dtype in SM_SHARE:
        part = spread[spread["kv_dtype"] == dtype]
        cases = list(zip(part["lengths"], part["batch"], part["tokens"], part["model"], strict=True))
        times = [
            [makespan(lengths_of(kind, batch, mean), KV_HEADS[model], dtype) for kind in (unequal, "equal")]
            for unequal, batch, mean, model in cases
        ]
        ratio, timed = np.divide(*np.array(times).T), part["ratio"].to_numpy()
        error, correlation = np.sqrt(np.mean((ratio - timed) ** 2)), np.corrcoef(ratio, timed)[0, 1]
        print(f"{dtype}: cut and shared by the rule {ratio.mean():.3f}, timed {timed.mean():.3f}, ", end="")
        print(f"root mean square difference {error:.3f}, correlation {correlation:.2f}")


if __name__ == "__main__":
    main()
