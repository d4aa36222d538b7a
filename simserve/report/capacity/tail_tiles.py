"""Latency tails at one load, as tiles of a page."""

from collections.abc import Mapping
from typing import Any

from simserve.report.formats import SHORT, seconds
from simserve.report.sections import prose, tile

LATENCIES = ("ttft_s", "tpot_s")


def tail_tiles(point: Mapping[str, Any]) -> list[str]:
    """Return a tile per latency: p99, and p50 below it."""
    return [
        tile(f"{SHORT[key]} p99 at this load", seconds(point[key]["p99"]), [prose(f"p50 {seconds(point[key]['p50'])}")])
        for key in LATENCIES
    ]
