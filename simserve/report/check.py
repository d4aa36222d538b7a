"""A check in words, Markdown and JUnit: whether p99 goodput fell, which SLO fails first, and where the time went."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from simserve.report.formats import NONE, SHORT, amount, goal, listed, number, plural, rate, share

WORTH_NAMING = 0.01
"""Change of a part of the time, as a share, below which it is no cause."""

MOST_NAMED = 3
"""Parts of the time that the sentence names; the table has all."""

BEHIND = {
    "ttft_s": ("queue_s", "queue_seats_s", "queue_blocks_s", "queue_budget_s", "prefill_s"),
    "tpot_s": ("tpot_s", "transfer_s", "interference_s", "evicted_s", "preempted_frac"),
    "itl_s": ("tpot_s", "transfer_s", "interference_s", "evicted_s", "preempted_frac"),
}
"""Parts of the time behind each SLO; all are behind E2E."""


def sentence(result: Mapping[str, Any]) -> str:
    """Return the decision, its cause and what was changed, from what `simserve check --json` prints."""
    texts = (headline(result), _baseline(result), _fails_first(result), why(result), _changes(result), _drawn(result))
    return " ".join(filter(None, texts))


def headline(result: Mapping[str, Any]) -> str:
    """Return `Regression: p99 goodput fell 25% (95% CI 23–27%), above the 2% tolerance: 10.1 req/s against 13.4.`"""
    now, before = result["candidate"]["goodput_per_s"], result["baseline"]["goodput_per_s"]
    name, tolerance = goodput_name(result), f"{percent(result['tolerance_frac'])} tolerance"
    word = "Pass" if result["passes"] else "Regression"
    if now is None:
        every = result["candidate"]["holds_every_load"]
        what = "every rate meets the SLO" if every else "no rate meets the SLO any more"
        return f"{word}: {what}. The baseline's {name} is {rate(before)} req/s."
    rates = f"{rate(now)} req/s against {rate(before)}"
    if result["state"] == "unchanged":
        what = "results match" if result["changes"] else "results and scenario match"
        return f"No change: {what} baseline {result['baseline']['name']} ({plural(result['n_seeds'], 'seed')})."
    moved = f"{name} {_moved_by_loss(result['loss'])}"
    line = {
        "same": f"{moved}, statistically tied",
        "better": moved,
        "within tolerance": f"{moved}, within the {tolerance}",
        "lost": f"{moved}, above the {tolerance}",
        "unclear": f"{moved}, which may be above the {tolerance}",
    }[result["state"]]
    return f"{word}: {line}: {rates}."


def goodput_name(result: Mapping[str, Any]) -> str:
    """`p99 goodput`."""
    return f"p{result['goal_frac'] * 100:.4g} goodput"


def why(result: Mapping[str, Any]) -> str:
    """Return the parts of a request's time and memory that changed most, those behind the first failing SLO first."""
    moved = [part for part in result["parts"] if _moved_by(part) >= WORTH_NAMING]
    if not moved or result["state"] == "unchanged":
        return ""
    behind = BEHIND.get(str(result["candidate"]["fails_first"]), ())
    moved.sort(key=lambda part: (part["key"] not in (*behind, "unanswered_frac"), -_moved_by(part)))
    named = [f"{part['label']} {_moved(part)}" for part in moved[:MOST_NAMED]]
    return f"At {rate(result['at']['baseline']['offered_per_s'])} req/s: {listed(named)}."


def table_rows(result: Mapping[str, Any]) -> list[Sequence[str]]:
    """Return a row a figure, below the column titles."""
    before, now = result["baseline"]["goodput_per_s"], result["candidate"]["goodput_per_s"]
    at = [result["at"][side] for side in ("baseline", "candidate")]
    loss = result["loss"]
    rows: list[Sequence[str]] = [("", "baseline", "now", "change")]
    change = NONE if loss is None else _signed(-loss["frac"])
    rows.append((f"{goodput_name(result)}, req/s", rate(before), rate(now), change))
    rows.append(
        (f"at {rate(at[0]['offered_per_s'])} req/s: all SLOs met", *(share(side["attained_frac"]) for side in at), "")
    )
    for key in at[0]["by_slo"]:
        limit = f" ≤ {goal(result['slo'][key])}" if key in result["slo"] else ""
        rows.append((f"{SHORT[key]}{limit} met", *(share(side["by_slo"].get(key)) for side in at), ""))
    for part in result["parts"]:
        if part["baseline"] is not None and part["candidate"] is not None:
            cells = [amount(part[side], part["unit"]) for side in ("baseline", "candidate")]
            label = f"mean {part['label']}" if part["unit"] == "s" else part["label"]
            rows.append((label, *cells, _signed(part["change_frac"])))
    return rows


def markdown(result: Mapping[str, Any]) -> str:
    """Return a summary for the page of a CI job."""
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
        lines += ["", "Changes of the scenario:", ""]
        for each in result["changes"]:
            before, now = (_escaped(_value(each[side])) for side in ("baseline", "candidate"))
            lines.append(f"- `{each['key'].replace('`', '')}`: {before} → {now}")
    return "\n".join(lines) + "\n"


def junit_xml(result: Mapping[str, Any]) -> str:
    """Return one JUnit test for CI systems, failed if the check is."""
    failures = str(int(not result["passes"]))
    counts = {"tests": "1", "failures": failures, "errors": "0", "skipped": "0"}
    suites = ElementTree.Element("testsuites", {"name": "simserve check", **counts})
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "simserve check", **counts})
    name = f"{goodput_name(result)} of {result['scenario']['name']}"
    test = ElementTree.SubElement(suite, "testcase", {"classname": "simserve.check", "name": _allowed(name)})
    rows = ("  ".join(filter(None, row)) for row in table_rows(result))
    line, table = _allowed(sentence(result)), _allowed("\n".join(rows))
    if result["passes"]:
        ElementTree.SubElement(test, "system-out").text = f"{line}\n\n{table}\n"
    else:
        failure = ElementTree.SubElement(test, "failure", {"message": line, "type": str(result["state"])})
        failure.text = f"{table}\n"
    ElementTree.indent(suites)
    xml = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{xml}\n'


def baseline_sentence(result: Mapping[str, Any], place: str) -> str:
    """Return what was measured and written, from what the file holds."""
    per_s = result["goodput_per_s"]
    return (
        f"{place}: {goodput_name(result)} of {result['scenario']['name']} is {rate(per_s['value'])} req/s "
        f"(95% CI {rate(per_s['low'])}–{rate(per_s['high'])}, {plural(len(result['crowd']['frac']), 'seed')}). "
        "Commit the file."
    )


def change_interval(low: float, high: float) -> str:
    """Return `95% CI 6.5–9.8%`, with signs where an end is negative: `95% CI -1% to +2.5%`."""
    if low < 0:
        return f"95% CI {_signed(low)} to {_signed(high)}"
    return f"95% CI {percent(low).removesuffix('%')}–{percent(high)}"


def _moved_by_loss(loss: Mapping[str, Any]) -> str:
    """Return `fell 6.2% (95% CI 5.1–7.3%)`; a gain as `rose`."""
    frac, low, high = (loss[key] for key in ("frac", "low_frac", "high_frac"))
    if frac < 0:
        return f"rose {percent(-frac)} ({change_interval(-high, -low)})"
    return f"fell {percent(frac)} ({change_interval(low, high)})"


def _baseline(result: Mapping[str, Any]) -> str:
    """Return the name of the baseline and the seeds, and what these could have found."""
    loss, n_seeds = result["loss"], plural(result["n_seeds"], "seed")
    if loss is None or result["state"] == "unchanged":
        return ""
    seeds = f"same {n_seeds}" if loss["is_paired"] else f"{n_seeds} on each side, not the same"
    line = f"Baseline: {result['baseline']['name']}, {seeds}."
    if result["state"] != "unclear":
        return line
    least = percent(loss["smallest_found_frac"])
    return f"{line} Only a loss of {least} or more is sure to be detected: make the runs longer to detect less."


def _fails_first(result: Mapping[str, Any]) -> str:
    now, before = result["candidate"]["fails_first"], result["baseline"]["fails_first"]
    if now is None or result["state"] == "unchanged":
        return ""
    limit = "" if now not in result["slo"] else f" ≤ {goal(result['slo'][now])}"
    then = "as before" if now == before or before is None else f"where {SHORT[before]} did"
    return f"{SHORT[now]}{limit} fails first, {then}."


def _changes(result: Mapping[str, Any]) -> str:
    """Return what was changed, as far as scenario and version show."""
    versions = [result[side]["simserve"] for side in ("baseline", "candidate")]
    texts = [] if versions[0] == versions[1] else [f"simserve: {versions[0]} → {versions[1]}."]
    n_changes = len(result["changes"])
    if n_changes == 1:
        only = result["changes"][0]
        texts.insert(0, f"Scenario: {only['key']} {_value(only['baseline'])} → {_value(only['candidate'])}.")
    elif n_changes:
        keys = [each["key"] for each in result["changes"][:MOST_NAMED]]
        texts.insert(0, f"Scenario: {n_changes} keys differ, such as {listed(keys)}.")
    elif result["state"] != "unchanged":
        is_paired = result["loss"] and result["loss"]["is_paired"]
        same = "The scenario is the same, so simserve has changed."
        texts.insert(0, same if is_paired else "Only the seeds differ.")
    return " ".join(texts)


def _drawn(result: Mapping[str, Any]) -> str:
    """Return drawn against nominal load at the lower of the two loads."""
    load = result.get("load")
    if not load:
        return ""
    return f"The seeds drew {rate(load['drawn_per_s'])} req/s of a nominal {rate(load['nominal_per_s'])}."


def _moved_by(part: Mapping[str, Any]) -> float:
    """Return the change as a share of what it was; infinite where it was nothing."""
    if part["baseline"] == 0 and part["candidate"]:
        return math.inf
    return abs(number(part["change_frac"]) or 0.0)


def _moved(part: Mapping[str, Any]) -> str:
    before, now = (amount(part[side], part["unit"]) for side in ("baseline", "candidate"))
    change = "" if number(part["change_frac"]) is None else f" ({_signed(part['change_frac'])})"
    return f"{before} → {now}{change}"


def percent(frac: float) -> str:
    """Return `8.1%` or `25%`."""
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
    """Return text that Markdown shows as it is, without cell, tag or emphasis."""
    for mark in "\\|<>*_`[]":
        text = text.replace(mark, f"\\{mark}")
    return text


def _allowed(text: str) -> str:
    """Return text without characters that XML forbids (XML 1.0, section 2.2)."""
    return re.sub(r"[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "�", text)
