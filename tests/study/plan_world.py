"""A world for the tests of plans in which what a fleet can do is known by hand."""

from collections.abc import Sequence
from typing import Any

from simserve.study.plan.options import Replicas
from simserve.study.run_seeds import Run
from tests.study.served import as_runs

N = 1000
"""Requests of a run."""


def summary(scale: float = 1.0, n_met: int = N, **changes: Any) -> dict[str, Any]:
    """A run at which 10 requests a second were offered, with 200 tokens of answers and 1,000 of both each second."""
    met = n_met / N
    latency = {"p50": 0.1, "p99": 0.2}
    result = {
        "slo_attainment": {"n_met": n_met, "n_arrived": N, "frac": met, "low_frac": met, "high_frac": met}
        | {"by_slo": {"ttft_s": met, "tpot_s": 1.0}},
        "requests": {"arrived": N},
        "trust": {"saturated": False, "kv_limit_is_a_guess": False},
        "offered_per_s": 10 * scale,
        "output_tokens_per_s": 200 * scale,
        "total_tokens_per_s": 1000 * scale,
        "goodput": {"output_tokens_per_s": 200 * scale * met},
        "busy_frac": 0.5,
        **dict.fromkeys(("ttft_s", "tpot_s", "e2e_s"), latency),
    }
    return result | changes


class World:
    """Fleets whose every replica serves a given share of the demand; more than that, and misses come."""

    def __init__(self, share: float, *, n_missed: int = 500) -> None:
        self.share = share
        self.n_missed = n_missed
        self.ran: list[tuple[Replicas, float, int]] = []

    def __call__(self, replicas: Replicas, scale: float, seeds: Sequence[int]) -> list[Run]:
        self.ran.append((replicas, scale, len(seeds)))
        is_enough = sum(replicas) * self.share >= scale * (1 - 1e-9)
        return as_runs(summary(scale, N if is_enough else N - self.n_missed) for _ in seeds)


class DisaggregatedWorld(World):
    """Prefill replicas serve one share of the demand, decode replicas another; who is short misses its own SLO."""

    def __init__(self, prefill_share: float, decode_share: float) -> None:
        super().__init__(0.0)
        self.shares = prefill_share, decode_share

    def __call__(self, replicas: Replicas, scale: float, seeds: Sequence[int]) -> list[Run]:
        self.ran.append((replicas, scale, len(seeds)))
        met = [min(1.0, n * share / scale) for n, share in zip(replicas, self.shares, strict=True)]
        of_all: dict[str, Any] = {"n_met": round(N * min(met)), "n_arrived": N, "frac": round(N * min(met)) / N}
        of_all |= {"by_slo": {"ttft_s": met[0], "tpot_s": met[1]}}
        return as_runs(summary(scale, slo_attainment=of_all) for _ in seeds)
