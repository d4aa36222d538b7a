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
    """Numbers of a run, or intervals of their means over runs."""

    slo_attainment_frac: Frac[M] = _keyed("slo_attainment.frac", "SLO attainment")
    goodput_per_s: PerS[M] = _keyed("goodput.per_s", "goodput")
    ttft_mean_s: Seconds[M] = _keyed("ttft_s.mean", "mean TTFT")
    ttft_p50_s: Seconds[M] = _keyed("ttft_s.p50", "p50 TTFT")
    ttft_p90_s: Seconds[M] = _keyed("ttft_s.p90", "p90 TTFT")
    ttft_p99_s: Seconds[M] = _keyed("ttft_s.p99", "p99 TTFT")
    tpot_mean_s: Seconds[M] = _keyed("tpot_s.mean", "mean TPOT")
    tpot_p50_s: Seconds[M] = _keyed("tpot_s.p50", "p50 TPOT")
    tpot_p90_s: Seconds[M] = _keyed("tpot_s.p90", "p90 TPOT")
    tpot_p99_s: Seconds[M] = _keyed("tpot_s.p99", "p99 TPOT")
    itl_mean_s: Seconds[M] = _keyed("itl_s.mean", "mean ITL")
    itl_p50_s: Seconds[M] = _keyed("itl_s.p50", "p50 ITL")
    itl_p90_s: Seconds[M] = _keyed("itl_s.p90", "p90 ITL")
    itl_p99_s: Seconds[M] = _keyed("itl_s.p99", "p99 ITL")
    e2e_mean_s: Seconds[M] = _keyed("e2e_s.mean", "mean E2E")
    e2e_p50_s: Seconds[M] = _keyed("e2e_s.p50", "p50 E2E")
    e2e_p90_s: Seconds[M] = _keyed("e2e_s.p90", "p90 E2E")
    e2e_p99_s: Seconds[M] = _keyed("e2e_s.p99", "p99 E2E")
    served_per_s: PerS[M] = _keyed("served_per_s", "requests served")
    output_tokens_per_s: PerS[M] = _keyed("output_tokens_per_s", "output tokens")
    goodput_per_gpu_s: PerS[M] = _keyed("goodput.per_gpu_s")
    goodput_per_usd: PerUsd[M] = _keyed("goodput.per_usd")
    offered_per_s: PerS[M] = _keyed("offered_per_s")
    busy_frac: Frac[M] = _keyed("busy_frac")
    mfu: Frac[M] = _keyed("mfu")
    mbu: Frac[M] = _keyed("mbu")
