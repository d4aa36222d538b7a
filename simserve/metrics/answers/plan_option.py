"""Options of a plan: a card and a number of GPUs a replica, as plan.json and the rows of plan.parquet have them."""

from typing import Annotated, Literal

from pydantic import Field

from simserve.metrics import summary_schema
from simserve.metrics.answers.fleet_needs import OptionGrowth
from simserve.metrics.answers.struct import (
    FINITE,
    Column,
    Count,
    Flag,
    Gpus,
    Kwh,
    PerS,
    Ratio,
    Replicas,
    Seconds,
    Seeds,
    Share,
    Struct,
    Text,
    Tokens,
    UsdPerHour,
    UsdPerMTokens,
    WholeUsd,
    titled,
)
from simserve.metrics.decision_json import Cause
from simserve.metrics.summary_schema import Measured

SAME_FRAC = 1e-9
"""Relative difference of costs that rounding leaves."""

OptionState = Literal["holds", "too slow", "too many", "refused"]


class OptionFleet(Struct):
    """An option and the size of its fleet."""

    option: Annotated[str, Column("text", "category")] = Field(title="Option")
    rank: Count = Field(title="Rank")
    state: Annotated[OptionState, Column("text", "category")] = Field(title="State")
    close_call: Flag = titled("Close call")
    calibrated: Flag = None
    gpu: Annotated[str, Column("text", "category")] = Field(title="GPU")
    tensor: Gpus = titled("TP")
    how: Annotated[Literal["together", "apart"] | None, Column("text", "category")] = titled("How")
    needed_replicas: Replicas = titled("Needed (replicas)")
    replicas: Replicas = titled("Replicas")
    prefill_replicas: Replicas = titled("Prefill (replicas)")
    decode_replicas: Replicas = titled("Decode (replicas)")
    gpus_per_replica: Gpus = None
    gpus: Gpus = titled("GPUs")


class OptionCost(Struct):
    """The price of a fleet, and its power."""

    usd_per_gpu_hour: UsdPerHour = titled("Price (USD a GPU-hour)")
    usd_per_hour: UsdPerHour = None
    usd_per_month: WholeUsd = titled("Cost a month (USD)")
    usd_per_month_low: WholeUsd = None
    usd_per_month_high: WholeUsd = None
    usd_per_m_output_tokens: UsdPerMTokens = titled("Per million output tokens (USD)")
    usd_per_m_tokens: UsdPerMTokens = titled("Per million tokens (USD)")
    usd_per_m_good_tokens: UsdPerMTokens = titled("Per million good tokens (USD)")
    usd_per_m_good_tokens_low: UsdPerMTokens = None
    usd_per_m_good_tokens_high: UsdPerMTokens = None
    tdp_w: Annotated[Measured, FINITE, Column("amount", "float", "W")] = None
    kwh_per_month: Kwh = titled("Energy a month (kWh)")
    kwh_per_month_at_tdp: Kwh = None
    gpu_hours_per_month: Annotated[Measured, FINITE, Column("whole", "float", "GPU h")] = titled("GPU-hours a month")
    kwh_per_m_output_tokens: Annotated[Measured, FINITE, Column("amount", "float", "kWh per million tokens")] = None


class OptionShare(Struct):
    """What the fewest replicas, or the largest fleet allowed, attain."""

    decision: Text = None
    r: Ratio = titled("r")
    probability: Share = titled("P (SLO met)")
    offered_per_s: PerS = titled("Offered (requests/s)")
    drawn_per_s: PerS = None
    attained_frac: Share = titled("Attained (share)")
    attained_low_frac: Share = titled("Attained, low (share)")
    attained_high_frac: Share = titled("Attained, high (share)")
    n_seeds: Seeds = None
    kv_peak_frac: Share = titled("Peak KV (share)")


class OtherSizes(Struct):
    """What the fleet with its spare replicas and the next smaller one attain, and what fails there."""

    all_up_attained_frac: Share = titled("Spare ones up (share attained)")
    fewer_attained_frac: Share = titled("One fewer (share)")
    fewer_saturated: bool | None = None
    fewer_n_seeds: Seeds = None
    fails_first: Text = None
    fails_first_frac: Share = None
    saturated: bool | None = None


class TiedFleet(Struct):
    """The smallest statistically tied fleet, including spares."""

    tied_replicas: Replicas = None
    tied_gpus: Gpus = None
    tied_n_seeds: Seeds = None
    tied_attained_frac: Share = None
    tied_low_frac: Share = None
    tied_high_frac: Share = None
    tied_by: Annotated[Cause | None, Column("text", "category")] = None
    tied_probability: Share = None


class OptionLatencies(Struct):
    """Latencies with the fewest replicas."""

    ttft_p50_s: Seconds = None
    ttft_p99_s: Seconds = titled("TTFT p99 (ms)")
    tpot_p50_s: Seconds = None
    tpot_p99_s: Seconds = titled("TPOT p99 (ms)")
    e2e_p50_s: Seconds = None
    e2e_p99_s: Seconds = titled("E2E p99 (ms)")


class OptionUse(Struct):
    """What the whole fleet does at the mean demand."""

    output_tokens_per_month: Tokens = None
    tokens_per_month: Tokens = None
    good_tokens_per_month: Tokens = None
    busy_frac: Share = titled("Busy (share)")


class OptionAlone(Struct):
    """What requests attain that are sent one at a time."""

    alone_attained_frac: Share = None
    alone_slo: Text = None
    alone_slo_frac: Share = None
    alone_refused_frac: Share = None
    alone_prompt_tokens: Annotated[summary_schema.Count | None, Column("count", "replica", "tokens")] = None
    alone_took_s: Seconds = None


class Refusal(Struct):
    """Why an option cannot run."""

    rule: str
    value: str | None = None
    remedy: str | None = None


class PlanOption(
    OptionAlone, OptionGrowth, OptionUse, OptionLatencies, TiedFleet, OtherSizes, OptionShare, OptionCost, OptionFleet
):
    """A card and a number of GPUs a replica; the bases stand in the reverse order of their columns."""

    refused_because: Refusal | None = None
    reason: Annotated[str, Column("sentence", "category")] = Field("", title="Reason")

    @property
    def is_held(self) -> bool:
        """Return whether it surely meets the SLO."""
        return self.state == "holds"

    @property
    def is_disaggregated(self) -> bool:
        """Return whether prefill and decode run on separate replicas."""
        return self.how == "apart"

    @property
    def spare_replicas(self) -> int:
        """Return the replicas that may be down."""
        return (self.replicas or 0) - (self.needed_replicas or 0)

    def more_frac(self, best: "PlanOption") -> float:
        """Return how much more it costs a month than another option; 0 where only rounding differs."""
        more = (self.usd_per_month or 0.0) / (best.usd_per_month or 1.0) - 1
        return more if abs(more) > SAME_FRAC else 0.0

    def may_undercut(self, best: "PlanOption") -> bool:
        """Return whether its smallest tied fleet is cheaper than its own and no more expensive than another option."""
        least = self.usd_per_month_low or 0.0
        return least < (self.usd_per_month or 0.0) and least <= (best.usd_per_month or 0.0)
