"""What the slowest 1% waited for: a bar and a table of the parts of their time, and the constraint in a sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.report.formats import NONE, SHORT, plural, seconds
from simserve.report.sections import prose, section, table, text
from simserve.report.summary_reader import SummaryReader

SlowestResult = Mapping[str, Mapping[str, Any]]
"""By latency, what `metrics/slowest.py` found of it."""

ORDER = ("ttft_s", "tpot_s", "e2e_s")

WORTH_SHOWING = 0.005
"""A part below that share of every bar has no key; the table has them all."""

CLOSE = ("missed", "edge")
"""Verdicts under which the terminal says what held the slowest up."""


@dataclass(frozen=True)
class TimePart:
    """A part of a request's time as people read it."""

    title: str
    color: str
    """CSS class of its swatch."""
    strength: float
    spent: str
    """`the slowest spent 231 ms of 365 ms ...`"""
    act: str
    """What would shorten it; {slots}, {budget} are what the scheduler calls them."""


PARTS = {
    "front_end_s": TimePart(
        "Front end", "k5", 1, "in the front end", "give the gateway shorter prompts or more servers"
    ),
    "transfer_wait_s": TimePart(
        "Room on the decode side",
        "k2",
        0.35,
        "waiting for seats and KV of decode replicas",
        "give the decode pool more of both",
    ),
    "queue_seats_s": TimePart(
        "Queue: seats", "k2", 1, "queueing for a seat", "raise {slots} as far as KV and TPOT allow"
    ),
    "queue_blocks_s": TimePart(
        "Queue: KV blocks",
        "k2",
        0.78,
        "queueing for KV blocks",
        "make room for more KV: gpu_memory_utilization, kv_dtype fp8, more GPUs a replica",
    ),
    "queue_budget_s": TimePart(
        "Queue: token budget",
        "k2",
        0.56,
        "queueing behind prompts that used up the steps' token budget",
        "raise {budget} if TPOT has room, or compute long prompts apart",
    ),
    "queue_turn_s": TimePart(
        "Queue: its turn",
        "k2",
        0.2,
        "waiting for the step in flight to end, or for its batch to start",
        "make steps shorter with a lower {budget}",
    ),
    "prefill_s": TimePart(
        "Prefill",
        "k1",
        1,
        "in steps that computed their prompts",
        "shorten these, or let a prefix cache find what they share",
    ),
    "prefill_wait_s": TimePart(
        "Waiting inside prefill",
        "k1",
        0.4,
        "half-way through their prompts in steps that gave them no tokens",
        "raise {budget}, or admit whole prompts only",
    ),
    "link_s": TimePart(
        "Transfer", "k5", 0.45, "waiting for keys and values on the link", "send them by layer (kv_link.how: push)"
    ),
    "decode_s": TimePart(
        "Decode",
        "k3",
        1,
        "in decode steps as long as these take by themselves",
        "fewer seats make each step shorter, and speculative decoding fewer of them",
    ),
    "interference_s": TimePart(
        "Interference",
        "k4",
        1,
        "held up in decoding by the prompts of others",
        "cut these smaller (long_prefill_token_threshold), or compute them apart (cluster.disaggregate)",
    ),
    "copy_s": TimePart(
        "Copies", "k4", 0.4, "in steps that waited for copies from or to host memory", "recompute instead of swapping"
    ),
    "preempted_s": TimePart(
        "Evicted, waiting", "k0", 1, "waiting after an eviction", "keep fewer running: a lower {slots} evicts fewer"
    ),
    "recompute_s": TimePart(
        "Computing again", "k0", 0.45, "computing again what an eviction had taken", "let them swap (host_tier)"
    ),
    "batch_wait_s": TimePart(
        "Waiting for the batch", "k3", 0.4, "waiting for the longest answer of their batch", "use smaller batches"
    ),
}
"""In the order of a request's life."""

LONG_ANSWERS = "their answers are longer, so cap max_tokens or let a draft propose tokens (speculation)"
"""What to do where decode sets the slowest by E2E apart."""

_KNOBS = {
    "sglang": ("max_running_requests", "chunked_prefill_size"),
    "trtllm": ("max_batch_size", "max_num_tokens"),
    "static": ("batch_size", "batch_size"),
    "dynamic": ("batch_size", "batch_size"),
}
_USUAL_KNOBS = ("max_num_seqs", "max_num_batched_tokens")


def why_slow(reader: SummaryReader, latency: str) -> str | None:
    """What sets the slowest by a latency apart, and what would help, in a sentence; None where nothing does."""
    line = _account_and_act(reader, latency)
    return None if line is None else f"{line[0]}: {line[1]}."


def _account_and_act(reader: SummaryReader, latency: str) -> tuple[str, str] | None:
    result = _slowest(reader).get(latency)
    if not result or result["binds"] not in PARTS:
        return None
    part, mean, of_all = PARTS[result["binds"]], result["mean"], result["all"]
    spent_s, total_s = mean[result["binds"]], sum(mean.values())
    each = " a token" if latency == "tpot_s" else ""
    who = f"The slowest 1% by {SHORT[latency]} ({plural(result['n'], 'request')}, from {seconds(result['from_s'])})"
    scheduler = str(reader.pools[0].get("scheduler")) if reader.pools else ""
    slots, budget = _KNOBS.get(scheduler, _USUAL_KNOBS)
    is_long = (latency, result["binds"]) == ("e2e_s", "decode_s")
    act = LONG_ANSWERS if is_long else part.act.format(slots=slots, budget=budget)
    spent = f"{who} spent {seconds(spent_s)} of {seconds(total_s)}{each} {part.spent}"
    return f"{spent}, against {seconds(of_all[result['binds']])} for all", act


def terminal_sentence(reader: SummaryReader) -> str | None:
    """The same of the goal that is missed most, where the verdict is a miss or close to one."""
    if reader.state not in CLOSE:
        return None
    worst = reader.worst_slo or "ttft_s"
    return why_slow(reader, "tpot_s" if worst == "itl_s" else worst)


def slowest(reader: SummaryReader) -> str:
    """The section of the page; nothing where nobody has split the time."""
    result = {latency: of for latency in ORDER if (of := _slowest(reader).get(latency))}
    if not result:
        return ""
    sentences = "".join(f"<li>{prose(sentence)}</li>" for sentence in _sentences(reader, result))
    bars = "".join(_pair(latency, of["all"], of["mean"]) for latency, of in result.items())
    body = f'<ul class="why">{sentences}</ul><div class="card">{_keys(result)}{bars}</div>{_table(result)}'
    note = "Means over the window's finished requests. Each bar adds up to its latency; TPOT is a token's."
    return section("slowest", "What the slowest 1% waited for", note, body)


def _sentences(reader: SummaryReader, result: SlowestResult) -> list[str]:
    """One a latency; what would help is said once."""
    line: list[str] = []
    acts: set[str] = set()
    for account, act in filter(None, (_account_and_act(reader, latency) for latency in result)):
        line.append(f"{account}." if act in acts else f"{account}: {act}.")
        acts.add(act)
    return line


def _slowest(reader: SummaryReader) -> SlowestResult:
    return (reader.summary.get("time_split") or {}).get("slowest") or {}


def _pair(latency: str, of_all: Mapping[str, float], of_slowest: Mapping[str, float]) -> str:
    """Two bars on one scale."""
    longest_s = max(sum(of_all.values()), sum(of_slowest.values())) or 1.0
    rows = (("all", of_all), ("slowest 1%", of_slowest))
    return "".join(_bar(f"{SHORT[latency]}, {who}", parts, longest_s) for who, parts in rows)


def _bar(label: str, parts: Mapping[str, float], longest_s: float) -> str:
    pieces = "".join(
        f'<i class="{part.color}" style="width:{100 * parts[name] / longest_s:.3f}%;opacity:{part.strength}" '
        f'title="{text(part.title)}: {text(seconds(parts[name]))}"></i>'
        for name, part in PARTS.items()
        if parts.get(name, 0.0) > 0
    )
    total = f"<strong>{prose(seconds(sum(parts.values())))}</strong>"
    return f'<div class="split"><span>{prose(label)}</span><div class="bar">{pieces}</div>{total}</div>'


def _keys(result: SlowestResult) -> str:
    bars = [of[who] for of in result.values() for who in ("all", "mean")]
    shown = [
        part
        for name, part in PARTS.items()
        if any(bar[name] > WORTH_SHOWING * sum(bar.values()) for bar in bars if sum(bar.values()))
    ]
    swatches = "".join(
        f'<span class="swatch"><i class="{part.color}" style="opacity:{part.strength}"></i>{text(part.title)}</span>'
        for part in shown
    )
    return f'<div class="keys">{swatches}</div>'


def _table(result: SlowestResult) -> str:
    """Every part that anybody had, of all and of the slowest."""
    columns = [(f"{SHORT[latency]}, {who}", of[key]) for latency, of in result.items() for who, key in _WHO]
    rows = [
        (text(part.title), _cells([parts[name] for _, parts in columns]))
        for name, part in PARTS.items()
        if any(parts[name] > 0 for _, parts in columns)
    ]
    rows.append(("In all", _cells([sum(parts.values()) for _, parts in columns])))
    return table(["", *(title for title, _ in columns)], rows)


_WHO = (("all", "all"), ("slowest", "mean"))


def _cells(values_s: Sequence[float]) -> list[str]:
    return [seconds(value_s) if value_s > 0 else NONE for value_s in values_s]
