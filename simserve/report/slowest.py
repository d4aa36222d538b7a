"""What the slowest 1 % waited for: a bar and a table of the parts of their time, and the constraint in a sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.report.formats import NONE, SHORT, plural, seconds
from simserve.report.sections import prose, section, table, text
from simserve.report.summary_reader import Answers

Found = Mapping[str, Mapping[str, Any]]
"""By latency, what `metrics/slowest.py` found of it."""

ORDER = ("ttft_s", "tpot_s", "e2e_s")

WORTH_SHOWING = 0.005
"""A part below that share of every bar has no key; the table has them all."""

CLOSE = ("missed", "edge")
"""Verdicts under which the terminal says what held the slowest up."""


@dataclass(frozen=True)
class Part:
    """A part of a request's time as people read it."""

    title: str
    colour: str
    """CSS class of its swatch."""
    strength: float
    spent: str
    """`the slowest spent 231 ms of 365 ms ...`"""
    act: str
    """What would shorten it; {seats}, {budget} are what the scheduler calls them."""


PARTS = {
    "front_end_s": Part("Front end", "k5", 1, "in the front end", "give the gateway shorter prompts or more servers"),
    "transfer_wait_s": Part(
        "Room on the decode side",
        "k2",
        0.35,
        "waiting for seats and KV of decode replicas",
        "give the decode pool more of both",
    ),
    "queue_seats_s": Part("Queue: seats", "k2", 1, "queueing for a seat", "raise {seats} as far as KV and TPOT allow"),
    "queue_blocks_s": Part(
        "Queue: KV blocks",
        "k2",
        0.78,
        "queueing for KV blocks",
        "make room for more KV: gpu_memory_utilization, kv_dtype fp8, more GPUs a replica",
    ),
    "queue_budget_s": Part(
        "Queue: token budget",
        "k2",
        0.56,
        "queueing behind prompts that used up the steps' token budget",
        "raise {budget} if TPOT has room, or compute long prompts apart",
    ),
    "queue_turn_s": Part(
        "Queue: its turn",
        "k2",
        0.2,
        "waiting for the step in flight to end, or for its batch to start",
        "make steps shorter with a lower {budget}",
    ),
    "prefill_s": Part(
        "Prefill",
        "k1",
        1,
        "in steps that computed their prompts",
        "shorten these, or let a prefix cache find what they share",
    ),
    "prefill_wait_s": Part(
        "Waiting inside prefill",
        "k1",
        0.4,
        "half-way through their prompts in steps that gave them no tokens",
        "raise {budget}, or admit whole prompts only",
    ),
    "link_s": Part(
        "Transfer", "k5", 0.45, "waiting for keys and values on the link", "send them by layer (kv_link.how: push)"
    ),
    "decode_s": Part(
        "Decode",
        "k3",
        1,
        "in decode steps as long as these take by themselves",
        "fewer seats make each step shorter, and speculative decoding fewer of them",
    ),
    "interference_s": Part(
        "Interference",
        "k4",
        1,
        "held up in decoding by the prompts of others",
        "cut these smaller (long_prefill_token_threshold), or compute them apart (cluster.disaggregate)",
    ),
    "copy_s": Part(
        "Copies", "k4", 0.4, "in steps that waited for copies from or to host memory", "recompute instead of swapping"
    ),
    "preempted_s": Part(
        "Evicted, waiting", "k0", 1, "waiting after an eviction", "keep fewer running: a lower {seats} evicts fewer"
    ),
    "recompute_s": Part(
        "Computing again", "k0", 0.45, "computing again what an eviction had taken", "let them swap (host_tier)"
    ),
    "batch_wait_s": Part(
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


def why_slow(answers: Answers, latency: str) -> str | None:
    """What sets the slowest by a latency apart, and what would help, in a sentence; None where nothing does."""
    said = _account_and_act(answers, latency)
    return None if said is None else f"{said[0]}: {said[1]}."


def _account_and_act(answers: Answers, latency: str) -> tuple[str, str] | None:
    found = _slowest(answers).get(latency)
    if not found or found["binds"] not in PARTS:
        return None
    part, mean, of_all = PARTS[found["binds"]], found["mean"], found["all"]
    spent_s, total_s = mean[found["binds"]], sum(mean.values())
    each = " a token" if latency == "tpot_s" else ""
    who = f"The slowest 1 % by {SHORT[latency]} ({plural(found['n'], 'request')}, from {seconds(found['from_s'])})"
    scheduler = str(answers.pools[0].get("scheduler")) if answers.pools else ""
    seats, budget = _KNOBS.get(scheduler, _USUAL_KNOBS)
    is_long = (latency, found["binds"]) == ("e2e_s", "decode_s")
    act = LONG_ANSWERS if is_long else part.act.format(seats=seats, budget=budget)
    spent = f"{who} spent {seconds(spent_s)} of {seconds(total_s)}{each} {part.spent}"
    return f"{spent}, against {seconds(of_all[found['binds']])} for all", act


def terminal_sentence(answers: Answers) -> str | None:
    """The same of the goal that is missed most, where the verdict is a miss or close to one."""
    if answers.state not in CLOSE:
        return None
    worst = answers.worst_slo or "ttft_s"
    return why_slow(answers, "tpot_s" if worst == "itl_s" else worst)


def slowest(answers: Answers) -> str:
    """The section of the page; nothing where nobody has split the time."""
    found = {latency: of for latency in ORDER if (of := _slowest(answers).get(latency))}
    if not found:
        return ""
    sentences = "".join(f"<li>{prose(sentence)}</li>" for sentence in _sentences(answers, found))
    bars = "".join(_pair(latency, of["all"], of["mean"]) for latency, of in found.items())
    body = f'<ul class="why">{sentences}</ul><div class="card">{_keys(found)}{bars}</div>{_table(found)}'
    note = "Means over the window's finished requests. Each bar adds up to its latency; TPOT is a token's."
    return section("slowest", "What the slowest 1 % waited for", note, body)


def _sentences(answers: Answers, found: Found) -> list[str]:
    """One a latency; what would help is said once."""
    said: list[str] = []
    acts: set[str] = set()
    for account, act in filter(None, (_account_and_act(answers, latency) for latency in found)):
        said.append(f"{account}." if act in acts else f"{account}: {act}.")
        acts.add(act)
    return said


def _slowest(answers: Answers) -> Found:
    return (answers.summary.get("time_split") or {}).get("slowest") or {}


def _pair(latency: str, of_all: Mapping[str, float], of_slowest: Mapping[str, float]) -> str:
    """Two bars on one scale."""
    longest_s = max(sum(of_all.values()), sum(of_slowest.values())) or 1.0
    rows = (("all", of_all), ("slowest 1 %", of_slowest))
    return "".join(_bar(f"{SHORT[latency]}, {who}", parts, longest_s) for who, parts in rows)


def _bar(label: str, parts: Mapping[str, float], longest_s: float) -> str:
    pieces = "".join(
        f'<i class="{part.colour}" style="width:{100 * parts[name] / longest_s:.3f}%;opacity:{part.strength}" '
        f'title="{text(part.title)}: {text(seconds(parts[name]))}"></i>'
        for name, part in PARTS.items()
        if parts.get(name, 0.0) > 0
    )
    total = f"<strong>{prose(seconds(sum(parts.values())))}</strong>"
    return f'<div class="split"><span>{prose(label)}</span><div class="bar">{pieces}</div>{total}</div>'


def _keys(found: Found) -> str:
    bars = [of[who] for of in found.values() for who in ("all", "mean")]
    shown = [
        part
        for name, part in PARTS.items()
        if any(bar[name] > WORTH_SHOWING * sum(bar.values()) for bar in bars if sum(bar.values()))
    ]
    swatches = "".join(
        f'<span class="swatch"><i class="{part.colour}" style="opacity:{part.strength}"></i>{text(part.title)}</span>'
        for part in shown
    )
    return f'<div class="keys">{swatches}</div>'


def _table(found: Found) -> str:
    """Every part that anybody had, of all and of the slowest."""
    columns = [(f"{SHORT[latency]}, {who}", of[key]) for latency, of in found.items() for who, key in _WHO]
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
