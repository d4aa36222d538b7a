"""Reservation, in words: KV that requests reserve for the longest possible answer keeps others waiting."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imports numpy
    from simserve.metrics.kv_json import KvUseJson, ReservationJson

ENOUGH_FRAC = 0.9
"""Longest answer over max_tokens from which a lower max_tokens would not help."""


def cause_and_remedy(result: "ReservationJson") -> str:
    """Return `Each request reserves 131,072 tokens of KV but uses about 850, so ... wait. Set workload.max_tokens`."""
    reserved, used = f"{result.reserved_tokens:,} tokens of KV", f"{result.used_tokens:,}"
    claims = f"starts only where {reserved} are free" if result.is_estimate else f"reserves {reserved}"
    return (
        f"Each request {claims} but uses about {used}, so a replica holds {result.at_once:,} at once and others "
        f"wait. {remedy(result)}"
    )


def remedy(result: "ReservationJson") -> str:
    """Return the keys to set."""
    longest, limit, acts = result.longest_output_tokens, result.max_tokens, []
    if limit is None:
        acts.append(f"Set workload.max_tokens (the longest answer has {longest:,} tokens)")
    elif longest < ENOUGH_FRAC * limit:
        acts.append(f"Lower workload.max_tokens or the trace's max_tokens (the longest answer has {longest:,} tokens)")
    if result.without is not None:
        acts.append(f"{'set' if acts else 'Set'} {result.without}")
    return ", or ".join(acts) or "Take a scheduler that reserves nothing, such as chunked"


def reservation_warnings(uses: "Iterable[KvUseJson]") -> list[str]:
    """Return the warning of the first run in which reservations keep requests waiting."""
    text = next((cause_and_remedy(use.reservation) for use in uses if use.reservation), "")
    return [f"{text[0].lower()}{text[1:]}"] if text else []
