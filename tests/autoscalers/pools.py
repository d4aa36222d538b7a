"""Pools as an autoscaler sees them, made by hand, and the recorded fleets that are there or not."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from simserve.autoscalers.base import Autoscaler
from simserve.state.pool_view import MemberPhase, MemberView, PoolView, Signals

FLEET = Path(__file__).resolve().parents[3] / "shared" / "data" / "fleet"
needs_fleet = pytest.mark.skipif(not FLEET.is_dir(), reason="the recorded fleets are not in this checkout")

WAITING, RUNNING, KV = "num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"


def signals(samples: Mapping[str, float] | None = None, at_s: float = 0.0) -> Signals:
    """Return signals with one scrape."""
    made = Signals()
    made.until_s = at_s
    for metric, value in (samples or {}).items():
        made.add(metric, at_s, value)
    return made


def member(samples: Mapping[str, float] | None = None, at_s: float = 0.0, phase: MemberPhase = "ready") -> MemberView:
    return MemberView(0, phase, signals(samples, at_s))


def pool(
    members: Iterable[MemberView],
    now_s: float = 0.0,
    wanted: int | None = None,
    gateway: Mapping[str, float] | None = None,
) -> PoolView:
    """Return a pool whose members were scraped, by default, just now."""
    numbered = [replace(each, id=number) for number, each in enumerate(members)]
    return PoolView(now_s, len(numbered) if wanted is None else wanted, numbered, signals(gateway, now_s))


def even(n: int, metric: str, value: float, now_s: float = 0.0) -> PoolView:
    """Return a pool of n ready members with the same value of a metric."""
    return pool([member({metric: value}, now_s)] * n, now_s)


def begun(policy: Autoscaler) -> Autoscaler:
    policy.begin()
    return policy


def followed(policy: Autoscaler, metric: str, totals: Iterable[float], n_replicas: int) -> list[int]:
    """Return the replicas after each decision; a total is split evenly, and replicas come and go at once."""
    policy.begin()
    history = []
    for tick, total in enumerate(totals):
        n_replicas = policy.desired_replicas(even(n_replicas, metric, total / n_replicas, tick * policy.interval_s))
        history.append(n_replicas)
    return history
