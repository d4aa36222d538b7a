"""Measures: the numbers of a run that studies decide by, or intervals of their means."""

from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field

from simserve.metrics.answers.struct import Column, Struct

M = TypeVar("M")

Frac = Annotated[M, Column("share", "float", "share 0..1")]
PerS = Annotated[M, Column("amount", "float", "1/s")]
PerUsd = Annotated[M, Column("amount", "float", "requests/$")]
Seconds = Annotated[M, Column("seconds", "float", "s")]


def _keyed(key: str, title: str | None = None) -> Any:
    """Return a field with a key of summary.json; without a value it is an empty interval, and no number."""
    return Field({}, alias=key, title=title, validate_default=True)


class Measures(Struct, Generic[M]):
    """Measures of a point: the figures of summary.json with these keys."""

    slo_attainment_frac: Frac[M] = _keyed("slo_attainment.frac", "SLO attainment")
    """[share] Requests that met every limit; null without an SLO."""
    goodput_per_s: PerS[M] = _keyed("goodput.per_s", "goodput")
    """[/s] Requests that met every limit, per second; null without an SLO."""
    ttft_mean_s: Seconds[M] = _keyed("ttft_s.mean", "mean TTFT")
    """[s] Mean of the time to the first token."""
    ttft_p50_s: Seconds[M] = _keyed("ttft_s.p50", "p50 TTFT")
    """[s] Median of the time to the first token."""
    ttft_p90_s: Seconds[M] = _keyed("ttft_s.p90", "p90 TTFT")
    """[s] 90th percentile of the time to the first token."""
    ttft_p99_s: Seconds[M] = _keyed("ttft_s.p99", "p99 TTFT")
    """[s] 99th percentile of the time to the first token."""
    tpot_mean_s: Seconds[M] = _keyed("tpot_s.mean", "mean TPOT")
    """[s] Mean of the time per output token after the first."""
    tpot_p50_s: Seconds[M] = _keyed("tpot_s.p50", "p50 TPOT")
    """[s] Median of the time per output token after the first."""
    tpot_p90_s: Seconds[M] = _keyed("tpot_s.p90", "p90 TPOT")
    """[s] 90th percentile of the time per output token after the first."""
    tpot_p99_s: Seconds[M] = _keyed("tpot_s.p99", "p99 TPOT")
    """[s] 99th percentile of the time per output token after the first."""
    itl_mean_s: Seconds[M] = _keyed("itl_s.mean", "mean ITL")
    """[s] Mean of gaps between tokens."""
    itl_p50_s: Seconds[M] = _keyed("itl_s.p50", "p50 ITL")
    """[s] Median of gaps between tokens."""
    itl_p90_s: Seconds[M] = _keyed("itl_s.p90", "p90 ITL")
    """[s] 90th percentile of gaps between tokens."""
    itl_p99_s: Seconds[M] = _keyed("itl_s.p99", "p99 ITL")
    """[s] 99th percentile of gaps between tokens."""
    e2e_mean_s: Seconds[M] = _keyed("e2e_s.mean", "mean E2E")
    """[s] Mean of the time to the last token."""
    e2e_p50_s: Seconds[M] = _keyed("e2e_s.p50", "p50 E2E")
    """[s] Median of the time to the last token."""
    e2e_p90_s: Seconds[M] = _keyed("e2e_s.p90", "p90 E2E")
    """[s] 90th percentile of the time to the last token."""
    e2e_p99_s: Seconds[M] = _keyed("e2e_s.p99", "p99 E2E")
    """[s] 99th percentile of the time to the last token."""
    served_per_s: PerS[M] = _keyed("served_per_s", "requests served")
    """[/s] Requests that finished within the window."""
    output_tokens_per_s: PerS[M] = _keyed("output_tokens_per_s", "output tokens")
    """[tokens/s] Output tokens of the window's finished requests."""
    goodput_per_gpu_s: PerS[M] = _keyed("goodput.per_gpu_s")
    """[/s] Requests that met every limit, per second and GPU."""
    goodput_per_usd: PerUsd[M] = _keyed("goodput.per_usd")
    """[/USD] Requests that met every limit, per dollar at the catalog's prices."""
    offered_per_s: PerS[M] = _keyed("offered_per_s")
    """[/s] Arrivals."""
    busy_frac: Frac[M] = _keyed("busy_frac")
    """[share] Time with a step in progress, of all replicas over the window."""
    mfu: Frac[M] = _keyed("mfu")
    """[share] FLOP/s of all computation over the data-sheet peak."""
    mbu: Frac[M] = _keyed("mbu")
    """[share] Bytes/s of all computation over the data-sheet bandwidth."""
