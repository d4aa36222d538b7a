"""Facts of a run as labels and texts: its throughput and use, and each mechanism, a function and a line below."""

from collections.abc import Callable

from simserve.report.document import Chapter, Facts, Row, Table
from simserve.report.formats import NONE, count, plural, rate, seconds, share
from simserve.report.run_view import RunView

Pairs = list[tuple[str, str]]
"""Labels and texts."""

ROUTING, PREFIX_CACHING = "Routing", "Prefix caching"
ALWAYS = {ROUTING, PREFIX_CACHING}
"""Mechanisms of most runs, which only the page shows."""

QUEUES = {"steady": "steady", "critical": "at capacity", "growing": "growing", "undetermined": "run too short to tell"}
"""The states of a queue in words."""


def mechanisms(reader: RunView) -> dict[str, Pairs]:
    """Return the figures of each mechanism that was active, by its title."""
    active = {title: tell for key, (title, tell) in MECHANISMS.items() if getattr(reader.summary, key) is not None}
    return {title: facts for title, tell in active.items() if (facts := tell(reader))}


def mechanism_list(reader: RunView) -> list[Chapter]:
    """Return the section of the page; nothing where the run had none."""
    blocks = [Facts(facts, title) for title, facts in mechanisms(reader).items()]
    return [Chapter("mechanisms", "Mechanisms", blocks)] if blocks else []


def use(reader: RunView) -> Chapter:
    """Return the section of throughput and use."""
    at = reader.number
    facts = [
        ("Requests served", f"{rate(at('served_per_s'))}/s"),
        ("Prompt tokens", f"{rate(at('input_tokens_per_s'))}/s"),
        ("Output tokens", f"{rate(at('output_tokens_per_s'))}/s"),
        ("SLO-met requests per dollar", rate(at("goodput.per_usd"))),
        ("Finished", plural(reader.n("finished"), "request")),
        (
            "Rejected, timed out, unfinished",
            " / ".join(count(reader.n(fate)) for fate in ("rejected", "timed_out", "unfinished")),
        ),
        *([("Failed with their replicas", count(reader.n("failed")))] if reader.n("failed") else []),
        ("Preemptions", count(at("preemptions.n"))),
        ("Tokens recomputed", count(at("preemptions.recomputed_tokens"))),
        ("KV capacity", f"{rate(at('kv.tokens'))} tokens" if at("kv.tokens") else f"{count(at('kv.blocks'))} states"),
        ("KV peak, fullest replica", share(at("kv.peak_frac"))),
        ("Queue", QUEUES.get(reader.queue_state or "", NONE)),
        ("Busy", share(at("busy_frac"))),
        ("FLOP utilization (MFU)", share(at("mfu"))),
        ("Bandwidth utilization (MBU)", share(at("mbu"))),
        ("GPU-hours", rate((at("gpu_seconds") or 0) / 3600)),
    ]
    return Chapter("use", "Throughput and utilization", [Facts(facts)])


def asked_for(reader: RunView) -> list[Table]:
    """Return a table of optional mechanisms without heads: the title, a label and a text; none without any."""
    result = {title: facts for title, facts in mechanisms(reader).items() if title not in ALWAYS}
    rows = [Row(title if i == 0 else "", fact) for title, facts in result.items() for i, fact in enumerate(facts)]
    return [Table((), rows)] if rows else []


def _sessions(reader: RunView) -> Pairs:
    """Describe conversations and tasks, in which requests wait for answers."""
    at = reader.number
    ends = " / ".join(count(at(f"sessions.{end}")) for end in ("finished", "refused", "cut"))
    return [
        ("Finished / refused / cut off", ends),
        ("Length, p50", seconds(at("sessions.e2e_s.p50"))),
        ("Length, p99", seconds(at("sessions.e2e_s.p99"))),
        ("Length, mean", seconds(at("sessions.e2e_s.mean"))),
        ("Time with a request in flight, mean", seconds(at("sessions.in_flight_s.mean"))),
    ]


def _retries(reader: RunView) -> Pairs:
    """Describe timeouts and retries of clients."""
    at = reader.number
    again = [
        ("Attempts per request", rate(at("retries.attempts_per_request"))),
        ("Answered after retries", share(at("retries.succeeded_frac"))),
        ("Met the SLO after retries", share(at("retries.slo_met_frac"))),
        ("First attempt to answer, p99", seconds(at("retries.e2e_s.p99"))),
    ]
    wasted = at("wasted.frac")
    return [
        *(again if reader.has_retries else []),
        *_storm(reader),
        *([("Tokens computed in vain", share(wasted))] if wasted else []),
    ]


def mean_outstanding(reader: RunView) -> float | None:
    """Mean requests at a replica, by Little's law; None where they are handed off, or not all answered, and where
    replicas joined or left."""
    if any(pool.has_changed for pool in reader.pools):
        return None
    entered_per_s, stay_s = reader.number("requests_per_s"), reader.number("e2e_s.mean")
    if reader.summary.transfer or reader.n("finished") < reader.n("arrived") or not entered_per_s or not stay_s:
        return None
    return entered_per_s * stay_s / sum(pool.n_replicas * pool.ranks_per_replica for pool in reader.pools)


def _storm(reader: RunView) -> Pairs:
    """Describe a retry storm, and what it sustained."""
    at = reader.number
    if not at("retry_storm.storm_s"):
        return []
    retried, metastable_s = share(at("retry_storm.most_frac")), at("retry_storm.metastable_s")
    lasting = [] if metastable_s is None else [("Metastable after the trigger, for", seconds(metastable_s))]
    return [("Attempts that were retries, at most", retried), *lasting]


def _routing(reader: RunView) -> Pairs:
    """Describe how evenly the router spread requests."""
    at = reader.number
    kept_frac = at("routing.session_kept_frac")
    kept = [] if kept_frac is None else [("Next request of a session on the same replica", share(kept_frac))]
    mean = mean_outstanding(reader)
    around = [] if mean is None else [("Requests at a replica, mean", rate(mean))]
    return [
        ("Requests sent to the busiest", share(at("routing.busiest_frac"))),
        *around,
        ("Requests at a replica, std. deviation", rate(at("routing.outstanding_std"))),
        *kept,
    ]


def _prefix_cache(reader: RunView) -> Pairs:
    """Describe hits of prefix caches."""
    hit_frac = reader.number("prefix_cache.hit_frac")
    if not hit_frac:
        return []
    return [
        ("Prompt tokens from the cache", share(hit_frac)),
        ("Requests with a cache hit", share(reader.number("prefix_cache.requests_frac"))),
    ]


def _host_tier(reader: RunView) -> Pairs:
    """Describe traffic to and from host memory and disk."""
    at = reader.number
    out, back, read = (
        f"{(at(f'host_tier.{name}_bytes') or 0) / 1e9:.3g} GB" for name in ("swapped_out", "swapped_in", "read")
    )
    hits = [at(f"host_tier.hit_tokens.{where}") for where in ("gpu", "host", "disk")]
    swaps = [("Requests swapped out", count(at("host_tier.n_swaps"))), ("Copied by swaps, out / in", f"{out} / {back}")]
    result = [
        ("Prefixes read from host and disk", read),
        ("Cache hits on GPU / host / disk, tokens", " / ".join(map(count, hits))),
    ]
    return [
        *(swaps if at("host_tier.n_swaps") else []),
        *(result if any(hits) else []),
        ("Steps waited for copies", seconds(at("host_tier.wait_s"))),
    ]


def _speculation(reader: RunView) -> Pairs:
    """Describe gain and cost of speculative decoding."""
    at = reader.number
    return [
        ("Tokens per request and step", rate(at("speculation.tokens_per_step"))),
        ("Proposed tokens accepted", share(at("speculation.accepted_frac"))),
        ("Time spent drafting", share(at("speculation.drafting_frac"))),
    ]


def _transfer(reader: RunView) -> Pairs:
    """Describe hand-offs from prefill to decode replicas: both sides and the link."""
    at = reader.number
    disaggregated_frac = at("transfer.apart_frac")
    disaggregated = (
        [("Prefilled on prefill replicas", share(disaggregated_frac))]
        if disaggregated_frac is not None and disaggregated_frac < 1
        else []
    )
    kept_frac = at("transfer.kept_frac")
    kept = [("Decoded on prefill replicas", share(kept_frac))] if kept_frac else []
    found_tokens = at("transfer.found_tokens")
    not_sent = [("Prompt tokens that the decode side had", f"{found_tokens:,.0f}")] if found_tokens else []
    sides = ("prefill", "link", "decode")
    return [
        *disaggregated,
        *kept,
        *not_sent,
        ("Bottleneck", reader.binds or "nothing"),
        ("Hand-off, p99", seconds(at("transfer.p99"))),
        *((f"Busy, {pool.name}", share(pool.busy_frac)) for pool in reader.pools),
        ("Busy, busiest port of the link", share(at("transfer.link_busy_frac"))),
        *((f"Mean wait for {name}", seconds(at(f"transfer.mean_wait_s.{name}"))) for name in sides),
    ]


MECHANISMS: dict[str, tuple[str, Callable[[RunView], Pairs]]] = {
    "sessions": ("Sessions", _sessions),
    "retries": ("Timeouts and retries", _retries),
    "routing": (ROUTING, _routing),
    "prefix_cache": (PREFIX_CACHING, _prefix_cache),
    "host_tier": ("Host memory", _host_tier),
    "speculation": ("Speculative decoding", _speculation),
    "transfer": ("Disaggregation", _transfer),
}
"""Title and function of each key of the summary, in the order of the page."""
