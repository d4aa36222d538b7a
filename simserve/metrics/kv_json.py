"""KV as summary.json has it: blocks, hits of caches, swaps, preemptions, and reservations that keep others waiting."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from simserve.metrics.answers.struct import Figures
from simserve.metrics.summary_schema import Count, Measured, Share


class PreemptionsJson(Figures):
    """Preemptions of the window's requests."""

    n: Count = 0
    """Preemptions."""
    requests: Count = 0
    """Requests with at least one."""
    requests_frac: Share | None = None
    """[share] Requests with at least one."""
    recomputed_tokens: Count = 0
    """[tokens] Sum of `n_recomputed_tokens`."""


class ReservationJson(Figures):
    """What requests reserve and use, where reservations keep others waiting."""

    waits_frac: Share = 1.0
    """[share] Time with running requests in which this kept the head of the queue waiting."""
    is_estimate: bool = False
    """True for SGLang, which reserves nothing, but admits a request only where its prompt and at most
    `clip_max_new_tokens_estimation` tokens of answer are free; it is named if the run's longest request would have
    fitted."""
    at_once: Annotated[int, Field(ge=1)]
    """Requests that ran on a replica meanwhile, mean."""
    reserved_tokens: Count
    """[tokens] Median of prompt + `max_tokens`; without limits, the longest that the model allows."""
    used_tokens: Count
    """[tokens] Mean of prompt + answer."""
    longest_output_tokens: Count
    """[tokens] Longest answer of the window."""
    max_tokens: Count | None
    """[tokens] Median limit; null if the load has none."""
    without: str | None
    """Setting of the scheduler that reserves nothing, or less; null if it has none."""


class KvUseJson(Figures):
    """Blocks of keys and values."""

    blocks: Count = 0
    """Blocks of all replicas; a mean over the run if replicas join or leave."""
    tokens: Count = 0
    """[tokens] Tokens that they hold; 0 where blocks are states."""
    peak_blocks: Count = 0
    """Most blocks that a replica ever held."""
    peak_frac: Measured = None
    """[share] Blocks that the fullest replica held at its peak, over the whole run."""
    reservation: ReservationJson | None = None
    """What requests reserve; null unless requests waited, for at least 1% of the time in the window, for blocks that
    others had reserved and did not use."""


class PrefixHitsJson(Figures):
    """Hits of a prefix cache."""

    hit_tokens: Count = 0
    """[tokens] Prompt tokens that a cache served."""
    hit_frac: Share | None = None
    """[share] Prompt tokens that a cache served."""
    requests_frac: Share | None = None
    """[share] Requests with any."""


class HitTokensJson(Figures):
    """Prompt tokens by where they were cached."""

    gpu: Count
    """[tokens] In GPU memory."""
    host: Count
    """[tokens] In host memory."""
    disk: Count
    """[tokens] On disk."""


class HostTierJson(Figures):
    """Host memory: the first three of the window's requests, the rest of the whole run and all GPUs."""

    n_swaps: Count = 0
    """Preemptions that moved KV to host memory."""
    requests_frac: Share | None = None
    """[share] Requests with any."""
    hit_tokens: HitTokensJson = HitTokensJson.model_construct(gpu=0, host=0, disk=0)
    """[tokens] Prompt tokens by where they were cached."""
    swapped_out_bytes: Measured = None
    """[bytes] KV that swaps moved to host memory, over the whole run; none with `scope: pool`."""
    swapped_in_bytes: Measured = None
    """[bytes] The part of `swapped_out_bytes` that came back."""
    dropped_bytes: Measured = None
    """[bytes] The part of `swapped_out_bytes` that was still cached on the GPU."""
    left_bytes: Measured = None
    """[bytes] The part of `swapped_out_bytes` still out at the end."""
    written_bytes: Measured = None
    """[bytes] Prefixes written to host memory."""
    read_bytes: Measured = None
    """[bytes] Prefixes read to the GPU."""
    disk_written_bytes: Measured = None
    """[bytes] Prefixes written to disk."""
    disk_read_bytes: Measured = None
    """[bytes] Prefixes read from disk."""
    wait_s: Measured = None
    """[s] Time that steps waited for copies, summed over replicas."""
    read_s: Measured = None
    """[s] Time that requests waited for prefix reads while others went on, summed."""


ENOUGH_FRAC = 0.9
"""Longest answer over max_tokens from which a lower max_tokens would not help."""


def cause_and_remedy(result: ReservationJson) -> str:
    """Return `Each request reserves 131,072 tokens of KV but uses about 850, so ... wait. Set workload.max_tokens`."""
    reserved, used = f"{result.reserved_tokens:,} tokens of KV", f"{result.used_tokens:,}"
    claims = f"starts only where {reserved} are free" if result.is_estimate else f"reserves {reserved}"
    return (
        f"Each request {claims} but uses about {used}, so a replica holds {result.at_once:,} at once and others "
        f"wait. {remedy(result)}"
    )


def remedy(result: ReservationJson) -> str:
    """Return the keys to set."""
    longest, limit, acts = result.longest_output_tokens, result.max_tokens, []
    if limit is None:
        acts.append(f"Set workload.max_tokens (the longest answer has {longest:,} tokens)")
    elif longest < ENOUGH_FRAC * limit:
        acts.append(f"Lower workload.max_tokens or the trace's max_tokens (the longest answer has {longest:,} tokens)")
    if result.without is not None:
        acts.append(f"{'set' if acts else 'Set'} {result.without}")
    return ", or ".join(acts) or "Take a scheduler that reserves nothing, such as chunked"


def reservation_warnings(uses: Iterable[KvUseJson]) -> list[str]:
    """Return the warning of the first run in which reservations keep requests waiting."""
    text = next((cause_and_remedy(use.reservation) for use in uses if use.reservation), "")
    return [f"{text[0].lower()}{text[1:]}"] if text else []
