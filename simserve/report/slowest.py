"""Time of the slowest 1%: a bar and a table of its parts, and a sentence on the largest cause with a remedy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from simserve.metrics.kv_json import remedy
from simserve.metrics.slowest import SlowestRequestsJson
from simserve.report.advice import worst_slo
from simserve.report.document import Bars, Block, Chapter, Items, Row, Slice, Table
from simserve.report.formats import NONE, SHORT, plural, seconds, share
from simserve.report.pools import budget_argument, slots_argument
from simserve.report.run_view import RunView

SlowestResult = Mapping[str, SlowestRequestsJson]
"""Results of `metrics/slowest.py`, by latency."""

ORDER = ("ttft_s", "tpot_s", "e2e_s")

GROUPS = (("all", "all"), ("slowest", "mean"))
"""What is compared, and its key in a result."""

WORTH_SHOWING = 0.005
"""Share of every bar below which a part has no key; the table has all parts."""


@dataclass(frozen=True)
class TimePart:
    """A part of a request's time as people read it."""

    title: str
    color: str
    """CSS class of its swatch."""
    strength: float
    spent: str
    """`queueing for a slot`, after `The slowest 1% by TTFT spend 2.5 s`."""
    acts: tuple[str, ...]
    """Remedies, of which those in use already are not given; {slots}, {budget} and {chunk} are what the scheduler calls
    the most running requests, the most tokens of a step, and the most of them of one prompt."""
    verb: str = "spend"


DISAGGREGATE = "disaggregate prefill"
CACHE = "cache prefixes that they share"
SPECULATE = "use speculative decoding"
SWAP = "swap instead of recomputing (host_tier)"

IN_USE: Mapping[str, Callable[[RunView], bool]] = {
    DISAGGREGATE: lambda reader: any(pool.role != "both" for pool in reader.pools),
    CACHE: lambda reader: bool(reader.number("prefix_cache.hit_frac")),
    SPECULATE: lambda reader: reader.summary.speculation is not None,
    SWAP: lambda reader: reader.summary.host_tier is not None,
}
"""Which remedies a run has already."""

PARTS = {
    "front_end_s": TimePart(
        "Front end", "k5", 1, "in the front end", ("give the gateway shorter prompts or more servers",)
    ),
    "transfer_wait_s": TimePart(
        "Room on the decode side",
        "k2",
        0.35,
        "waiting for slots and KV of decode replicas",
        ("give the decode pool more of both",),
    ),
    "queue_seats_s": TimePart(
        "Queue: slots", "k2", 1, "queueing for a slot", ("raise {slots} as far as KV and TPOT allow",)
    ),
    "queue_blocks_s": TimePart(
        "Queue: KV blocks",
        "k2",
        0.78,
        "queueing for KV blocks",
        ("make room for KV: raise gpu_memory_utilization, use kv_dtype fp8 or more GPUs per replica",),
    ),
    "queue_budget_s": TimePart(
        "Queue: token budget",
        "k2",
        0.56,
        "queueing behind prompts that used up the token budget of steps",
        ("raise {budget} if TPOT has room", DISAGGREGATE),
    ),
    "queue_turn_s": TimePart(
        "Queue: next step",
        "k2",
        0.2,
        "waiting for the current step to end, or for their batch to start",
        ("lower {budget} to make steps shorter",),
    ),
    "prefill_s": TimePart("Prefill", "k1", 1, "in their own prefill", ("shorten prompts", CACHE)),
    "prefill_wait_s": TimePart(
        "Waiting inside prefill",
        "k1",
        0.4,
        "between chunks of their prefill, in steps without tokens for them",
        ("raise {budget}", "admit whole prompts only"),
    ),
    "link_s": TimePart("Transfer", "k5", 0.45, "waiting for KV on the link", ("send it by layer (kv_link.how: push)",)),
    "decode_s": TimePart(
        "Decode", "k3", 1, "in decode, interference aside", ("use fewer slots to make steps shorter", SPECULATE)
    ),
    "interference_s": TimePart(
        "Interference", "k4", 1, "to other requests' prefills", ("lower {chunk}", DISAGGREGATE), "lose"
    ),
    "copy_s": TimePart(
        "Copies",
        "k4",
        0.4,
        "in steps that waited for copies from or to host memory",
        ("recompute instead of swapping",),
    ),
    "preempted_s": TimePart(
        "Evicted, waiting", "k0", 1, "waiting after an eviction", ("lower {slots} for fewer evictions",)
    ),
    "recompute_s": TimePart("Recomputation", "k0", 0.45, "recomputing evicted KV", (SWAP,)),
    "batch_wait_s": TimePart(
        "Waiting for the batch", "k3", 0.4, "waiting for the longest answer of their batch", ("use smaller batches",)
    ),
}
"""Parts in the order of a request's life."""

RESERVED = ("queue_seats_s", "queue_blocks_s")
"""Parts that reservations of KV lengthen: padded batches wait for a slot, as others do for blocks."""

LONG_ANSWERS = ("their answers are longer: cap max_tokens", SPECULATE)
"""Remedies where decode is the largest cause of a long E2E."""


def why_slow(reader: RunView, latency: str) -> str | None:
    """Return the largest cause of the slowest by a latency, and a remedy; None where nothing stands out."""
    return "".join(_cause_and_remedy(reader, latency) or "") or None


def _cause_and_remedy(reader: RunView, latency: str) -> tuple[str, str] | None:
    """Return two sentences; the second is empty where a run does already all that would help."""
    result = _slowest(reader).get(latency)
    if result is None or result.binds not in PARTS:
        return None
    part, mean, each = PARTS[name := result.binds], vars(result.mean), "/token" if latency == "tpot_s" else ""
    requests = f"The slowest 1% by {SHORT[latency]} ({plural(result.n, 'request')}, ≥ {seconds(result.from_s)})"
    acts = LONG_ANSWERS if (latency, name) == ("e2e_s", "decode_s") else part.acts
    if name in RESERVED and reader.reservation:
        acts = (remedy(reader.reservation),)
    spent = f"{part.verb} {_of_total(mean[name], sum(mean.values()))}{each} {part.spent}"
    return f"{requests} {spent} (average: {seconds(result.all.at(name))}).", _remedy(reader, acts)


def _remedy(reader: RunView, acts: Sequence[str]) -> str:
    """Return what would help and is not in use yet, after a space."""
    budget = budget_argument(reader.pools)
    is_chunked = any(pool.scheduler == "chunked" for pool in reader.pools)
    chunk = "long_prefill_token_threshold" if is_chunked else budget
    text = ", or ".join(act for act in acts if act not in IN_USE or not IN_USE[act](reader))
    text = text.format(slots=slots_argument(reader.pools), budget=budget, chunk=chunk)
    return f" {text[0].upper()}{text[1:]}." if text else ""


def _of_total(part_s: float, total_s: float) -> str:
    """Return `25.6 of 45.2 ms`, or `20.0 ms of 2.00 s`."""
    (part, unit), total = seconds(part_s).rsplit(" ", 1), seconds(total_s)
    return f"{part} of {total}" if total.endswith(f" {unit}") else f"{part} {unit} of {total}"


def terminal_sentence(reader: RunView) -> str:
    """Return the cause and remedy for the SLO missed most, where the decision is a miss or close to one."""
    if reader.state not in ("missed", "likely_misses", "edge", "likely_meets"):
        return ""
    worst = worst_slo(reader) or "ttft_s"
    return why_slow(reader, "tpot_s" if worst == "itl_s" else worst) or ""


def slowest(reader: RunView) -> list[Chapter]:
    """Return the section of the page; nothing where the time was not split."""
    result = {latency: of for latency in ORDER if (of := _slowest(reader).get(latency))}
    if not result:
        return []
    bars = []
    for latency, of in result.items():
        parts = {"all": _parts(of, "all"), "slowest 1%": _parts(of, "mean")}
        longest_s = max(sum(each.values()) for each in parts.values()) or 1.0
        bars += [_bar(f"{SHORT[latency]}, {label}", each, longest_s) for label, each in parts.items()]
    blocks: list[Block] = [Items(_sentences(reader, result)), Bars(_keys(result), bars), _table(result)]
    note = (
        "Means over the window's finished requests. Each bar adds up to its latency; TPOT is per token. "
        f"Parts under {share(WORTH_SHOWING)} of every bar have no key; the table has all."
    )
    return [Chapter("slowest", "Slowest 1%: where the time goes", blocks, note)]


def _sentences(reader: RunView, result: SlowestResult) -> list[str]:
    """Return the cause for each latency; a remedy stands once."""
    lines: list[str] = []
    for cause, act in filter(None, (_cause_and_remedy(reader, latency) for latency in result)):
        lines.append(cause if any(line.endswith(act) for line in lines) else cause + act)
    return lines


def _slowest(reader: RunView) -> SlowestResult:
    slowest = reader.summary.time_split.slowest if reader.summary.time_split else {}
    return {latency: of for latency, of in slowest.items() if of is not None}


def _parts(of: SlowestRequestsJson, key: str) -> Mapping[str, float]:
    """Return the parts of the slowest requests ("mean"), or of all."""
    return dict(getattr(of, key))


def _bar(label: str, parts: Mapping[str, float], longest_s: float) -> tuple[str, list[Slice], str]:
    """Return the parts side by side, on the scale of the longest bar of a latency."""
    slices = [
        Slice(part.color, part.strength, part_s / longest_s, part.title, seconds(part_s))
        for name, part in PARTS.items()
        if (part_s := parts[name]) > 0
    ]
    return label, slices, seconds(sum(parts.values()))


def _keys(result: SlowestResult) -> list[tuple[str, float, str]]:
    """Return the keys of the parts that are worth showing."""
    bars = [_parts(of, key) for of in result.values() for _, key in GROUPS]
    return [
        (part.color, part.strength, part.title)
        for name, part in PARTS.items()
        if any(bar[name] > WORTH_SHOWING * sum(bar.values()) for bar in bars if sum(bar.values()))
    ]


def _table(result: SlowestResult) -> Table:
    """Return the table of all parts that any request had, of all and of the slowest."""
    columns = [(f"{SHORT[name]}, {group}", _parts(of, key)) for name, of in result.items() for group, key in GROUPS]
    rows = [
        Row(part.title, _cells([parts[name] for _, parts in columns]))
        for name, part in PARTS.items()
        if any(parts[name] > 0 for _, parts in columns)
    ]
    rows.append(Row("Total", _cells([sum(parts.values()) for _, parts in columns])))
    return Table(["", *(title for title, _ in columns)], rows)


def _cells(values_s: Sequence[float]) -> list[str]:
    return [seconds(value_s) if value_s > 0 else NONE for value_s in values_s]
