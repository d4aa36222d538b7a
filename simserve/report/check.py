"""A check in words: whether a change loses p99 goodput, how much, which SLO fails first, and where the time went."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.formats import NONE, SHORT, goal, listed, number, plural, rate, seconds, share

WORTH_NAMING = 0.01
"""A part that changed by less is not why."""

MOST_NAMED = 3
"""Parts that the sentence names; the table has all."""

BEHIND = {
    "ttft_s": ("queue_s", "queue_seats_s", "queue_blocks_s", "queue_budget_s", "prefill_s"),
    "tpot_s": ("tpot_s", "transfer_s", "interference_s", "evicted_s", "preempted_frac"),
    "itl_s": ("tpot_s", "transfer_s", "interference_s", "evicted_s", "preempted_frac"),
}
"""The parts that an SLO is about; one of E2E is about all."""


def sentence(result: Mapping[str, Any]) -> str:
    """The answer and why; from what `simserve check --json` prints."""
    parts = (
        f"{result['scenario']['name']} {headline(result)}",
        _seeds(result),
        _fails_first(result),
        why(result),
        _what(result),
    )
    return " ".join(part for part in parts if part)


def headline(result: Mapping[str, Any]) -> str:
    """`fails: p99 goodput is 12.1 requests/s against 12.9, 6.2% less (5.1 to 7.3%), over the tolerance of 2%.`"""
    now, before = result["candidate"]["goodput_per_s"], result["baseline"]["goodput_per_s"]
    name, tolerance = goodput_name(result), f"the tolerance of {_percent(result['tolerance_frac'])}"
    verb = "passes" if result["passes"] else "fails"
    if now is None:
        every = result["candidate"]["holds_every_load"]
        what = "every rate that was tried meets the SLO" if every else "no rate that was tried meets the SLO"
        return f"{verb}: {what}; {name} of the baseline is {rate(before)} requests/s."
    loss = result["loss"]
    rates = f"{name} is {rate(now)} requests/s against {rate(before)}"
    line = {
        "unchanged": "nothing has changed",
        "same": f"{_by(loss)}, no more than chance",
        "better": f"{_by(loss)}",
        "within tolerance": f"{_by(loss)}, within {tolerance}",
        "lost": f"{_by(loss)}, over {tolerance} beyond doubt",
        "unclear": f"{_by(loss)}, which may be chance or over {tolerance}",
    }[result["state"]]
    return f"{verb}: {rates}, {line}."


def goodput_name(result: Mapping[str, Any]) -> str:
    """`p99 goodput`."""
    return f"p{result['goal_frac'] * 100:.4g} goodput"


def why(result: Mapping[str, Any]) -> str:
    """Which parts of a request's time and memory changed most, those behind the SLO that fails first before others."""
    moved = [part for part in result["parts"] if _moved_by(part) >= WORTH_NAMING]
    if not moved or result["state"] == "unchanged":
        return ""
    behind = BEHIND.get(str(result["candidate"]["fails_first"]), ())
    moved.sort(key=lambda part: (part["key"] not in (*behind, "unanswered_frac"), -_moved_by(part)))
    named = [f"{part['label']} {_moved(part)}" for part in moved[:MOST_NAMED]]
    return f"At {rate(result['at']['baseline']['offered_per_s'])} requests/s: {listed(named)}."


def table_rows(result: Mapping[str, Any]) -> list[Sequence[str]]:
    """A row a figure, below the heads of the columns."""
    before, now = result["baseline"]["goodput_per_s"], result["candidate"]["goodput_per_s"]
    at = [result["at"][side] for side in ("baseline", "candidate")]
    loss = result["loss"]
    rows: list[Sequence[str]] = [("", "baseline", "now", "change")]
    change = NONE if loss is None else _signed(-loss["frac"])
    rows.append((f"{goodput_name(result)}, requests/s", rate(before), rate(now), change))
    head = f"at {rate(at[0]['offered_per_s'])} requests/s"
    rows.append((f"{head}: all SLOs met", *(share(side["attained_frac"]) for side in at), ""))
    for key in at[0]["by_slo"]:
        limit = f" ≤ {goal(result['slo'][key])}" if key in result["slo"] else ""
        rows.append((f"{SHORT[key]}{limit} met", *(share(side["by_slo"].get(key)) for side in at), ""))
    for part in result["parts"]:
        if part["baseline"] is not None and part["candidate"] is not None:
            cells = [_amount(part[side], part["unit"]) for side in ("baseline", "candidate")]
            rows.append(
                (
                    f"mean {part['label']}" if part["unit"] == "s" else part["label"],
                    *cells,
                    _signed(part["change_frac"]),
                )
            )
    return rows


def markdown(result: Mapping[str, Any]) -> str:
    """A summary for the page of a CI job."""
    head, *rows = table_rows(result)
    lines = [
        f"### simserve check: {_escaped(result['scenario']['name'])} {'passes' if result['passes'] else 'fails'}",
        "",
        _escaped(sentence(result)),
        "",
        f"| {' | '.join(head)} |",
        "|---|---:|---:|---:|",
        *(f"| {' | '.join(map(_escaped, row))} |" for row in rows),
    ]
    if result["changes"]:
        lines += ["", "What differs in the scenario:", ""]
        lines += [
            f"- {_code(each['key'])}: {_escaped(_value(each['baseline']))} → {_escaped(_value(each['candidate']))}"
            for each in result["changes"]
        ]
    return "\n".join(lines) + "\n"


def baseline_sentence(result: Mapping[str, Any], place: str) -> str:
    """What was measured and written, from what the file holds."""
    per_s = result["goodput_per_s"]
    return (
        f"{place}: {goodput_name(result)} of {result['scenario']['name']} is {rate(per_s['value'])} requests/s "
        f"({rate(per_s['low'])} to {rate(per_s['high'])}, {plural(len(result['crowd']['frac']), 'seed')}). Commit it."
    )


def _by(loss: Mapping[str, Any]) -> str:
    """`6.2% less (5.1 to 7.3%)`; a gain as `more`."""
    frac, low, high = (loss[key] for key in ("frac", "low_frac", "high_frac"))
    if frac < 0:
        frac, low, high = -frac, -high, -low
        return f"{_percent(frac)} more ({_percent(low)} to {_percent(high)})"
    return f"{_percent(frac)} less ({_percent(low)} to {_percent(high)})"


def _seeds(result: Mapping[str, Any]) -> str:
    """What it was held against, and with how many seeds."""
    loss, n_seeds = result["loss"], plural(result["n_seeds"], "seed")
    if loss is None:
        return ""
    seeds = f"the same {n_seeds}" if loss["is_paired"] else f"{n_seeds} on each side, not the same"
    line = f"Held against {result['baseline']['name']} with {seeds}."
    if result["state"] != "unclear":
        return line
    least = _percent(loss["smallest_found_frac"])
    return f"{line} With so many, a loss is found from {least} on: make the runs longer to know more."


def _fails_first(result: Mapping[str, Any]) -> str:
    now, before = result["candidate"]["fails_first"], result["baseline"]["fails_first"]
    if now is None or result["state"] == "unchanged":
        return ""
    limit = "" if now not in result["slo"] else f" ≤ {goal(result['slo'][now])}"
    then = "as before" if now == before or before is None else f"where {SHORT[before]} did"
    return f"{SHORT[now]}{limit} fails first, {then}."


def _what(result: Mapping[str, Any]) -> str:
    """What was changed, as far as the scenario tells."""
    versions = [result[side]["simserve"] for side in ("baseline", "candidate")]
    then = "" if versions[0] == versions[1] else f"; simserve was {versions[0]} then and is {versions[1]} now"
    n_changes = len(result["changes"])
    if n_changes == 1:
        only = result["changes"][0]
        return (
            f"The scenario differs in {only['key']}: {_value(only['baseline'])}, now {_value(only['candidate'])}{then}."
        )
    if n_changes:
        keys = [each["key"] for each in result["changes"][:MOST_NAMED]]
        return f"The scenario differs in {plural(n_changes, 'key')}, such as {listed(keys)}{then}."
    if result["state"] == "unchanged":
        return f"Nor has the scenario{then}."
    if not (result["loss"] and result["loss"]["is_paired"]):
        return f"The scenario is the same but for its seed{then}."
    return f"The scenario is the same, so simserve itself has changed{then}."


def _moved_by(part: Mapping[str, Any]) -> float:
    """How far, as a share of what it was; from nothing to something is farthest."""
    if part["baseline"] == 0 and part["candidate"]:
        return math.inf
    return abs(number(part["change_frac"]) or 0.0)


def _moved(part: Mapping[str, Any]) -> str:
    before, now = (_amount(part[side], part["unit"]) for side in ("baseline", "candidate"))
    change = "" if number(part["change_frac"]) is None else f" ({_signed(part['change_frac'])})"
    return f"{before} → {now}{change}"


def _amount(value: Any, unit: str) -> str:
    return share(value) if unit == "frac" else seconds(value)


def _percent(frac: float) -> str:
    return f"{frac * 100:.2g}%" if abs(frac) < 0.1 else f"{frac * 100:.0f}%"


def _signed(frac: Any) -> str:
    value = number(frac)
    if value is None:
        return NONE
    return "0%" if value == 0 else f"{value * 100:+.2g}%" if abs(value) < 0.1 else f"{value * 100:+,.0f}%"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)


def _escaped(text: str) -> str:
    """As Markdown shows it: no cell, tag or emphasis comes of it."""
    for mark in "\\|<>*_`[]":
        text = text.replace(mark, f"\\{mark}")
    return text


def _code(text: str) -> str:
    return f"`{text.replace('`', '')}`"
