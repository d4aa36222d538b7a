"""Schemas: columns of every parquet file of a result, in order, with kinds and units."""

from dataclasses import dataclass
from typing import Literal

SCHEMA = "simserve/1"
"""Version of all output files; within a version columns are only added."""

MOST = 1e18
"""Limit of times, rates and tokens that are read back, as of those in summary.json."""

Kind = Literal["float", "int32", "int64", "replica", "flag", "category", "text", "id", "lists"]
"""Storage of a column.

float: NaN is null. replica: int32, -1 is null. text: "" is null. category: few distinct strings, written as a
dictionary. id: integers, or strings if the load has them. lists: lists of integers, only in traces. A column without
data is None in memory and all null in the file.
"""


@dataclass(frozen=True)
class Field:
    """One column."""

    name: str
    kind: Kind
    unit: str = ""
    is_optional: bool = True
    """Rows may be without a value."""


def _fields(text: str) -> tuple[Field, ...]:
    """Return columns from lines of `kind unit: names`; the unit may be left out, and a ? marks optional values."""
    fields: list[Field] = []
    for line in text.strip().splitlines():
        what, names = line.split(":")
        kind, _, unit = what.strip().partition(" ")
        plain, is_optional = kind.removesuffix("?"), kind.endswith("?")
        fields += [Field(name, plain, unit.strip(), is_optional) for name in names.split()]  # type: ignore[arg-type]
    return tuple(fields)


SPLIT = tuple(
    field.name
    for field in _fields("""
        float? s: front_end_s queue_seats_s queue_blocks_s queue_budget_s queue_turn_s prefill_s prefill_wait_s
        float? s: link_s decode_s interference_s copy_s recompute_s batch_wait_s
    """)
)
"""Columns of requests that the metrics compute from data that no file keeps; runs read from files keep them."""

REQUESTS = _fields(f"""
    id: request_id
    float s: arrival_s
    int64 tokens: prompt_tokens output_tokens
    int64? tokens: max_tokens
    category: status
    category?: status_reason pool
    replica?: replica prefill_replica
    float? s: scheduled_s first_token_s finish_s queue_s preempted_s transfer_s ttft_s tpot_s max_itl_s e2e_s
    int32: n_preemptions
    int64 tokens: n_recomputed_tokens cached_tokens
    text?: session_id
    int64?: turn attempt priority
    text?: slo_class
    flag: in_window
    flag?: slo_met
    float? s: transfer_wait_s
    int32: n_swaps
    int64 tokens: host_cached_tokens disk_cached_tokens
    int64?: session_requests
    float? s: first_sent_s gave_up_s
    int64 tokens: wasted_tokens
    text?: tenant
    int64 tokens: decode_cached_tokens
    float? s: {" ".join(SPLIT)}
""")

STEPS = _fields("""
    replica: replica
    int64: step decode_step n_steps
    float s: start_s end_s first_step_s last_step_s
    int32 tokens: prefill_tokens
    int32 requests: decode_requests
    int64 tokens: kv_tokens
    int32 blocks: kv_blocks_used kv_blocks_reserved
    int32 requests: queue_len
    category?: blocked_by
    int64 query-key pairs: prefill_pairs
    int32 tokens: accepted_tokens
    float s: interference_s copy_s
""")

SPANS = _fields("""
    int64: request_id
    replica: replica
    int64: first_step last_step
    float s: join_s
""")

TIMESERIES = _fields("""
    replica: replica
    category: pool
    float s: start_s end_s
    float requests: queue_len running
    float share 0..1: kv_frac
    float tokens/s: prefill_tokens_per_s output_tokens_per_s
    float share 0..1: mfu mbu busy_frac
""")

MEMBERS = _fields("""
    replica: replica
    category: pool
    float s: ordered_s
    float? s: ready_s draining_s gone_s
    category?: why
    int32: gpus
""")

TABLES = {"requests": REQUESTS, "steps": STEPS, "spans": SPANS, "timeseries": TIMESERIES, "members": MEMBERS}
"""Tables of a result by name; each is the file `<name>.parquet`."""

REPLICATIONS = _fields("""
    int64: seed
    float? share 0..1: slo_attainment.frac
    float? requests/s: goodput.per_s goodput.per_gpu_s
    float? requests/$: goodput.per_usd
    float? s: ttft_s.mean ttft_s.p50 ttft_s.p90 ttft_s.p95 ttft_s.p99 ttft_s.p99.9
    float? s: tpot_s.mean tpot_s.p50 tpot_s.p90 tpot_s.p95 tpot_s.p99 tpot_s.p99.9
    float? s: itl_s.mean itl_s.p50 itl_s.p90 itl_s.p95 itl_s.p99 itl_s.p99.9
    float? s: e2e_s.mean e2e_s.p50 e2e_s.p90 e2e_s.p95 e2e_s.p99 e2e_s.p99.9
    float? s: queue_s.mean queue_s.p50 queue_s.p90 queue_s.p95 queue_s.p99 queue_s.p99.9
    float? requests/s: offered_per_s requests_per_s served_per_s
    float? tokens/s: input_tokens_per_s output_tokens_per_s total_tokens_per_s
    float? share 0..1: busy_frac mfu mbu kv.peak_frac
    float? requests: requests.arrived requests.finished trust.n_worth
    float?: preemptions.n
""")

MORE_TABLES = {"replications": REPLICATIONS}
"""Tables that a result has only on request."""
