"""Schemas: columns of every parquet file of a result, in order, with kinds and units, and their meanings.

A docstring after a table says what a row is, then what each column is, as `names: Meaning.`; docs and tests read it.
"""

from simserve.tables.fields import fields_from

SCHEMA = "simserve/1"
"""Version of all output files; within a version columns are only added."""

MOST = 1e18
"""Limit of times, rates and tokens that are read back, as of those in summary.json."""

SPLIT = tuple(
    field.name
    for field in fields_from("""
        float? s: front_end_s queue_seats_s queue_blocks_s queue_budget_s queue_turn_s prefill_s prefill_wait_s
        float? s: link_s decode_s interference_s copy_s recompute_s batch_wait_s
    """)
)
"""Columns of requests that the metrics compute from data that no file keeps; runs read from files keep them."""

REQUESTS = fields_from(f"""
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
    int32: n_failures n_migrations
""")
"""One row per request, in the order of sending.

In a pool that answers batches as a whole (`static` and `dynamic` without `stream`), `first_token_s` is `finish_s`, and
TPOT and gaps are 0. `transfer_wait_s`, `preempted_s` and the columns from `front_end_s` on add up to `e2e_s`.

request_id: The load's own id, or the row number from 0.
arrival_s: When the client sent it.
prompt_tokens: Length of its prompt.
output_tokens: True length of the answer, cut at `max_tokens` or `max_model_len`.
max_tokens: Limit that the client set; null if it set none.
status: `finished`, `rejected`, `timed_out`, `failed` (lost with its replica) or `unfinished`.
status_reason: Why it was refused, cut off or abandoned; null when there is nothing to report.
pool: Where it ran; null if it never ran.
replica: Where it ran, until it migrated, counted from 0 over all pools; null if it never ran.
prefill_replica: The replica that computed its prompt for another; null unless it was handed off.
scheduled_s: Start of the first step that gave it tokens; null if none did.
first_token_s: When the client received its first token, which no preemption changes; null if it never did.
finish_s: When the client received its last token; null if it never did.
queue_s: `scheduled_s - arrival_s`; null where `scheduled_s` is.
preempted_s: Total wait after preemptions, swapped out or not, and migrations, as far as they have ended.
transfer_s: From the end of its prefill until its KV cache had arrived at its decode replica; 0 if it never did.
ttft_s: `first_token_s - arrival_s`; null where `first_token_s` is.
tpot_s: `(finish_s - first_token_s) / (output_tokens - 1)`, vLLM's TPOT, which GuideLLM and AIPerf call inter-token
    latency; null for one output token or an unfinished request.
max_itl_s: Largest gap between two tokens, also across preemptions; null for one output token or an unfinished request.
e2e_s: `finish_s - arrival_s`; null where `finish_s` is.
n_preemptions: How many times it lost its blocks.
n_recomputed_tokens: Tokens lost to preemptions, except those still cached when it returned, and those lost with a
    replica before the request was sent to another.
cached_tokens: Prompt tokens served by a prefix cache.
session_id: From the load; null if the request has none.
turn: Position of the request in its session, from 1; null if the request has none.
attempt: 1, or more for retries, which have the `request_id` of the first attempt and a row each (docs/overload.md).
priority: From the load, lower goes first; 0 if it has none.
slo_class, tenant: From the load; null if the request has none.
in_window: Whether it arrived in the window, so that it counts.
slo_met: Whether it finished with every latency at or below its limit; null without an SLO.
transfer_wait_s: Wait before the decode replica had a slot and blocks for it: part of `transfer_s`, or with `how: push`
    of `queue_s`.
n_swaps: Preemptions that moved its KV cache to host memory and so lost nothing; `n_preemptions` includes them.
host_cached_tokens, disk_cached_tokens: The part of `cached_tokens` read from host memory, and from disk.
session_requests: Planned requests of its session, 1 without one; null unless requests wait for other answers.
first_sent_s: When the first attempt was sent; `arrival_s` for a first attempt.
gave_up_s: When the client gave up, or its request failed; null otherwise.
wasted_tokens: Prompt and output tokens computed for a client that gave up, or for a request that failed or, after its
    replica was lost, was refused; otherwise 0.
decode_cached_tokens: Prompt tokens in the prefix cache of its decode replica, which were not sent; 0 without a hand-off
    (docs/disaggregation.md#what-the-decode-side-has).
front_end_s: Tokenizing before the router, with its queue, and streaming after the last step; null unless it finished.
queue_seats_s, queue_blocks_s, queue_budget_s: Wait at the replica that computed its prompt while slots, KV blocks or
    the token budget blocked the head of the queue (`blocked_by` of its steps); null unless it finished.
queue_turn_s: Rest of that wait: no limit applied, but its batch was still filling or a step had to end
    first (one in flight, planned ahead, or of ranks that step together); null unless it finished.
prefill_s: Steps that computed its prompt, including other requests' work in them and copies that these steps waited
    for; null unless it finished.
prefill_wait_s: Time between its prefill steps, in steps that gave it no tokens; null unless it finished.
link_s: KV cache on the link and in its queue; with `how: push` also the message of room; null unless it finished.
decode_s: What its decode steps would have taken without prompts in them, exactly; null unless it finished.
interference_s: Rest of its decode time: prompts in its steps and prompt-only steps; in a pipeline, batches ahead of it;
    after a transfer, the end of the step that it missed; null unless it finished.
copy_s: Copies to and from host memory, its own or others', that its decode steps waited for; null unless it finished.
recompute_s: In a slot again, recomputing what it had lost, until its next token; null unless it finished.
batch_wait_s: If answers leave whole, wait for the longest request of the batch; null unless it finished.
n_failures: How many times it lost its replica.
n_migrations: How many of these times it went on elsewhere with the tokens that its client had.
"""

STEPS = fields_from("""
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
"""One row per step run: consecutive steps of a replica with the same requests. Counters are those at its start.

replica: Counted from 0, over all pools.
step: Number of the row's first step, from 0 for each replica.
decode_step: The same, counting only steps in which a request decodes; rows with `decode_requests` 0 do not advance it.
n_steps: Steps in the row.
start_s, end_s: Start and end of the whole row.
first_step_s, last_step_s: Duration of its first and last step; durations in between grow linearly.
prefill_tokens: Prompt tokens computed, including padding, all in the first step.
decode_requests: Requests that got a token in each step; in a padded batch, requests that were computed.
kv_tokens: Keys attended by them in the first step (with proposed tokens, those of the token before); grows by
    `decode_requests` per step.
kv_blocks_used: Blocks that hold tokens.
kv_blocks_reserved: Blocks that are reserved.
queue_len: Requests left waiting when the row began.
blocked_by: What blocked the head of the queue: `seats` (slots), `blocks` or `budget`; null if nothing did.
prefill_pairs: Pairs of the prompt chunks; for FLOP counts.
accepted_tokens: With speculation (docs/speculation.md), output beyond one token per decoding request and step; else 0.
interference_s: Part of the row beyond what its decode steps alone would take; all of it if no request decodes.
copy_s: Part of the row that waits for copies from or to host memory; not part of `interference_s`.
"""

SPANS = fields_from("""
    int64: request_id
    replica: replica
    int64: first_step last_step
    float s: join_s
""")
"""One row per completed prefill, first or after a preemption, and one per return from host memory.

request_id: Row number in requests.parquet, from 0, even if the load has its own ids.
replica: Where it decoded, or would have; the prompt was computed at `prefill_replica`, if it was handed off.
first_step, last_step: Decode steps of the replica, as `decode_step` counts them.
join_s: End of the step that completed the prefill, or after a return from host memory of the first decode step.
"""

TIMESERIES = fields_from("""
    replica: replica
    category: pool
    float s: start_s end_s
    float requests: queue_len running
    float share 0..1: kv_frac
    float tokens/s: prefill_tokens_per_s output_tokens_per_s
    float share 0..1: mfu mbu busy_frac
""")
"""One row per replica and interval: at most 600 intervals of 1, 2 or 5 × 10^k seconds.

replica: Counted from 0, over all pools.
pool: Name of its pool.
start_s, end_s: Start and end of the interval.
queue_len: Mean number of waiting requests, linear between the values of the step rows.
running: Mean number of requests from `scheduled_s` to the last token; recomputation after a preemption is not counted.
kv_frac: Mean share of blocks used or reserved; 0 while idle.
prefill_tokens_per_s: Tokens computed for prompts.
output_tokens_per_s: Tokens generated.
mfu, mbu: FLOP/s and bytes/s of all computation, including padding and recomputation, over the data-sheet peaks.
busy_frac: Time with a step in progress.
"""

MEMBERS = fields_from("""
    replica: replica
    category: pool
    float s: ordered_s
    float? s: called_s ready_s draining_s gone_s
    category?: why
    int32: gpus
""")
"""One row per replica, in the order of joining; numbers are never reused.

replica: Its number in all tables.
pool: Name of its pool.
ordered_s: From when it has its GPUs.
called_s: From when it is needed; until then a spare stands by or a replica sleeps; null if it never was.
ready_s: From when it receives requests; null if it was never ready.
draining_s: From when it receives no more requests and finishes those it has; null if it did not drain.
gone_s: When it ended or failed; null if it stayed.
why: Why it joined, and why it left.
gpus: Its GPUs.
"""

TABLES = {"requests": REQUESTS, "steps": STEPS, "spans": SPANS, "timeseries": TIMESERIES, "members": MEMBERS}
"""Tables of a result by name; each is the file `<name>.parquet`."""

REPLICATIONS = fields_from("""
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
"""One row per seed; the first is the run that the other files are of.

All but `seed` are figures of summary.json, under their dotted names; a value that a run does not have is null.

seed: Seed of the run.
slo_attainment.frac: Requests that met every limit.
goodput.*: Requests that met every limit: per second, per second and GPU, or per dollar, as the name says.
ttft_s.*, tpot_s.*, itl_s.*, e2e_s.*, queue_s.*: Mean and percentiles of the latency.
offered_per_s: Arrivals.
requests_per_s: Requests of the window that finished at any time.
served_per_s: Requests that finished within the window.
*_tokens_per_s: Tokens of the requests of `requests_per_s`.
busy_frac, mfu, mbu: Utilization of all replicas over the window.
kv.peak_frac: KV blocks that the fullest replica held at its peak.
requests.*: Requests of the window, and those that finished.
trust.n_worth: Effective sample size of the window.
preemptions.n: Preemptions of the window's requests.
"""

MORE_TABLES = {"replications": REPLICATIONS}
"""Tables that a result has only on request."""
