"""Options of a plan: a card and a number of GPUs a replica, as plan.json and the rows of plan.parquet have them."""

from typing import Annotated, Literal

from pydantic import Field

from simserve.metrics import summary_schema
from simserve.metrics.answers.fleet_needs import OptionGrowth
from simserve.metrics.answers.option_cost import OptionCost, OptionUse
from simserve.metrics.answers.struct import (
    Column,
    Count,
    Flag,
    Gpus,
    PerS,
    Ratio,
    Replicas,
    Seconds,
    Seeds,
    Share,
    Struct,
    Text,
    titled,
)
from simserve.metrics.summary_schema import Cause

SAME_FRAC = 1e-9
"""Relative difference of costs that rounding leaves."""

OptionState = Literal["holds", "too slow", "too many", "refused"]


class OptionFleet(Struct):
    """An option and the size of its fleet."""

    option: Annotated[str, Column("text", "category")] = Field(title="Option")
    """Its name: `h100-sxm TP 2`, `h100-sxm TP 2, disaggregated`."""
    rank: Count = Field(title="Rank")
    """1 for the recommended option; null for an option that misses the goal."""
    state: Annotated[OptionState, Column("text", "category")] = Field(title="State")
    """`holds`; `too slow`: a request alone misses the SLO; `too many`: more GPUs than allowed; `refused`: it cannot
    run."""
    close_call: Flag = titled("Close call")
    """Whether a fleet of it that may meet the SLO costs no more than the recommended option."""
    calibrated: Flag = None
    """Whether the kernels of this card were timed; null if it cannot run."""
    gpu: Annotated[str, Column("text", "category")] = Field(title="GPU")
    """Name of the GPU."""
    tensor: Gpus = titled("TP")
    """[GPUs] Degree of tensor parallelism."""
    how: Annotated[Literal["together", "apart"] | None, Column("text", "category")] = titled("How")
    """`together`, or `apart`: prefill and decode on separate replicas."""
    needed_replicas: Replicas = titled("Needed (replicas)")
    """[replicas] The fewest that surely meet the SLO at the demand; by mean attainment if it cannot be cheapest; or the
    largest fleet allowed; null without runs."""
    replicas: Replicas = titled("Replicas")
    """[replicas] All replicas, spare ones included; null if it misses the goal."""
    prefill_replicas: Replicas = titled("Prefill (replicas)")
    """[replicas] Prefill replicas; null unless disaggregated."""
    decode_replicas: Replicas = titled("Decode (replicas)")
    """[replicas] Decode replicas; null unless disaggregated."""
    gpus_per_replica: Gpus = None
    """[GPUs] GPUs of a replica; null if it cannot run."""
    gpus: Gpus = titled("GPUs")
    """[GPUs] GPUs of all replicas, spare ones included; null if it misses the goal."""


class OptionShare(Struct):
    """What the fewest replicas, or the largest fleet allowed, attain."""

    decision: Text = None
    """`met`, `edge` or `missed`: for the fewest replicas, or for the largest fleet allowed; null without runs."""
    r: Ratio = titled("r")
    """Quantile at the goal of latency / limit; null if costs were not drawn for it."""
    probability: Share = titled("P (SLO met)")
    """[share] Probability that the SLO is met, with cost error; null if costs were not drawn for it."""
    offered_per_s: PerS = titled("Offered (requests/s)")
    """[/s] The demand that the fleet is sized for."""
    drawn_per_s: PerS = None
    """[/s] The rate that the seeds drew."""
    attained_frac: Share = titled("Attained (share)")
    """[share] Requests that met every limit, with the fewest replicas or the largest fleet allowed."""
    attained_low_frac: Share = titled("Attained, low (share)")
    """[share] Low end of the 95% interval of `attained_frac`."""
    attained_high_frac: Share = titled("Attained, high (share)")
    """[share] High end of the 95% interval of `attained_frac`."""
    n_seeds: Seeds = None
    """[seeds] Runs behind `attained_frac`; fewer than `assumed.n_seeds` if the first alone missed more than all may."""
    kv_peak_frac: Share = titled("Peak KV (share)")
    """[share] KV blocks that the fullest replica used at its peak, mean over seeds."""


class OtherSizes(Struct):
    """What the fleet with its spare replicas and the next smaller one attain, and what fails there."""

    all_up_attained_frac: Share = titled("Spare ones up (share attained)")
    """[share] Requests that met every limit with the spare replicas up."""
    fewer_attained_frac: Share = titled("One fewer (share)")
    """[share] Requests that met every limit with one replica fewer than the fewest; null if that leaves none."""
    fewer_saturated: bool | None = None
    """Whether the queue only grew with one replica fewer; null if that leaves none."""
    fewer_n_seeds: Seeds = None
    """[seeds] Runs with one replica fewer; null if that leaves none."""
    fails_first: Text = None
    """The limit that the fewest requests meet: with one replica fewer, or with the largest fleet allowed."""
    fails_first_frac: Share = None
    """[share] Requests that meet `fails_first` there."""
    saturated: bool | None = None
    """Whether the queue only grew with the largest fleet allowed; null if the option meets the goal."""


class TiedFleet(Struct):
    """The smallest fleet on the edge, spare replicas included."""

    tied_replicas: Replicas = None
    """[replicas] Replicas of the smallest fleet on the edge, spare ones included; null if one fewer misses the SLO."""
    tied_gpus: Gpus = None
    """[GPUs] GPUs of the smallest fleet on the edge."""
    tied_n_seeds: Seeds = None
    """[seeds] Runs of the smallest fleet on the edge."""
    tied_attained_frac: Share = None
    """[share] Requests that met every limit with the smallest fleet on the edge."""
    tied_low_frac: Share = None
    """[share] Low end of the 95% interval of `tied_attained_frac`."""
    tied_high_frac: Share = None
    """[share] High end of the 95% interval of `tied_attained_frac`."""
    tied_by: Annotated[Cause | None, Column("text", "category")] = None
    """What keeps the smallest fleet on the edge there: `noise`, `cost` or `load`."""
    tied_probability: Share = None
    """[share] Probability that the smallest fleet on the edge meets the SLO."""


class OptionLatencies(Struct):
    """Latencies with the fewest replicas."""

    ttft_p50_s: Seconds = None
    """[s] Median of the time to the first token."""
    ttft_p99_s: Seconds = titled("TTFT p99 (ms)")
    """[s] 99th percentile of the time to the first token."""
    tpot_p50_s: Seconds = None
    """[s] Median of the time per output token after the first."""
    tpot_p99_s: Seconds = titled("TPOT p99 (ms)")
    """[s] 99th percentile of the time per output token after the first."""
    e2e_p50_s: Seconds = None
    """[s] Median of the time to the last token."""
    e2e_p99_s: Seconds = titled("E2E p99 (ms)")
    """[s] 99th percentile of the time to the last token."""


class OptionAlone(Struct):
    """What requests attain that are sent one at a time."""

    alone_attained_frac: Share = None
    """[share] Requests that met every limit when sent one at a time; null if unknown."""
    alone_slo: Text = None
    """Limit that the fewest requests met when sent one at a time."""
    alone_slo_frac: Share = None
    """[share] Requests that met `alone_slo` when sent one at a time."""
    alone_refused_frac: Share = None
    """[share] Requests that no replica can hold."""
    alone_prompt_tokens: Annotated[summary_schema.Count | None, Column("count", "replica", "tokens")] = None
    """[tokens] Prompt of the request that took longest by `alone_slo` when sent one at a time."""
    alone_took_s: Seconds = None
    """[s] Latency of that request."""


class Refusal(Struct):
    """Why an option cannot run."""

    rule: str
    """The rule that it breaks."""
    value: str | None = None
    """What it has instead; null if the rule says it."""
    remedy: str | None = None
    """What to do; null if nothing helps."""


class PlanOption(
    OptionAlone, OptionGrowth, OptionUse, OptionLatencies, TiedFleet, OtherSizes, OptionShare, OptionCost, OptionFleet
):
    """A card and a number of GPUs a replica. Invariant: the bases stand in the reverse order of their columns."""

    refused_because: Refusal | None = None
    """Why it cannot run; null if it can."""
    reason: Annotated[str, Column("sentence", "category")] = Field("", title="Reason")
    """Why it wins, loses or misses the goal."""

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
