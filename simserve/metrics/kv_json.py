"""KV as summary.json has it: blocks and tokens, hits of caches, swaps, preemptions and reservations."""

from typing import Annotated

from pydantic import Field

from simserve.metrics.answers.struct import Figures
from simserve.metrics.summary_schema import Count, Measured, Share


class PreemptionsJson(Figures):
    """Preemptions of the window's requests."""

    n: Count = 0
    requests: Count = 0
    requests_frac: Share | None = None
    recomputed_tokens: Count = 0


class ReservationJson(Figures):
    """What requests reserve and use, where reservations keep others waiting."""

    waits_frac: Share = 1.0
    is_estimate: bool = False
    at_once: Annotated[int, Field(ge=1)]
    reserved_tokens: Count
    used_tokens: Count
    longest_output_tokens: Count
    max_tokens: Count | None
    without: str | None


class KvUseJson(Figures):
    """Blocks of keys and values."""

    blocks: Count = 0
    tokens: Count = 0
    peak_blocks: Count = 0
    peak_frac: Measured = None
    reservation: ReservationJson | None = None


class PrefixHitsJson(Figures):
    """Hits of a prefix cache."""

    hit_tokens: Count = 0
    hit_frac: Share | None = None
    requests_frac: Share | None = None


class HitTokensJson(Figures):
    """Prompt tokens by where they were cached."""

    gpu: Count
    host: Count
    disk: Count


class HostTierJson(Figures):
    """Host memory."""

    n_swaps: Count = 0
    requests_frac: Share | None = None
    hit_tokens: HitTokensJson = HitTokensJson.model_construct(gpu=0, host=0, disk=0)
    swapped_out_bytes: Measured = None
    swapped_in_bytes: Measured = None
    dropped_bytes: Measured = None
    left_bytes: Measured = None
    written_bytes: Measured = None
    read_bytes: Measured = None
    disk_written_bytes: Measured = None
    disk_read_bytes: Measured = None
    wait_s: Measured = None
    read_s: Measured = None
