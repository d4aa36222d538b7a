"""A check in words, Markdown and JUnit: whether p99 goodput fell, which SLO fails first, and where the time went."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from simserve.metrics.answers.baseline import Baseline
from simserve.metrics.answers.check import CheckAnswer, PartOfSides
from simserve.report.formats import NONE, SHORT, amount, ci_95, goal, listed, percent, plural, rate, share, signed

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


def sentence(answer: CheckAnswer) -> str:
    """Return the decision, its cause and what was changed."""
    decision = f"{word(answer)}: {statement(answer)}"
    parts = (compared_with(answer), least_found(answer), fails_first(answer), why(answer))
    return " ".join(filter(None, (decision, *parts, changed(answer), drawn(answer))))


def word(answer: CheckAnswer) -> str:
    """Return `Regression`, `Pass` or `No change`."""
    return "No change" if answer.state == "unchanged" else "Pass" if answer.passes else "Regression"


def statement(answer: CheckAnswer) -> str:
    """Return `p99 goodput fell 25% (95% CI 23–27%), above the 2% tolerance: 10.1 req/s against 13.4.`"""
    if answer.loss is None:
        return "every rate meets the SLO." if answer.candidate.holds_every_load else "no rate meets the SLO any more."
    if answer.state == "unchanged":
        what = "results match" if answer.changes else "results and scenario match"
        return f"{what} baseline {answer.baseline.name} ({plural(answer.n_seeds, 'seed')})."
    tolerance = f"{percent(answer.tolerance_frac)} tolerance"
    rest = {
        "same": ", statistically tied",
        "better": "",
        "within tolerance": f", within the {tolerance}",
        "lost": f", above the {tolerance}",
        "unclear": f", which may be above the {tolerance}",
    }[answer.state]
    rates = f"{rate(answer.candidate.goodput_per_s)} req/s against {rate(answer.baseline.goodput_per_s)}"
    loss = answer.loss
    moved = f"fell {percent(loss.frac)} ({ci_95(loss.low_frac, loss.high_frac)})"
    if loss.frac < 0:
        moved = f"rose {percent(-loss.frac)} ({ci_95(-loss.high_frac, -loss.low_frac)})"
    return f"{goodput_name(answer)} {moved}{rest}: {rates}."


def goodput_name(answer: CheckAnswer | Baseline) -> str:
    """`p99 goodput`."""
    return f"p{answer.goal_frac * 100:.4g} goodput"


def compared_with(answer: CheckAnswer) -> str:
    """Return the name of the baseline and the seeds, or its p99 goodput where the candidate has none."""
    if answer.loss is None:
        return f"The baseline's {goodput_name(answer)} is {rate(answer.baseline.goodput_per_s)} req/s."
    if answer.state == "unchanged":
        return ""
    n_seeds = plural(answer.n_seeds, "seed")
    seeds = f"same {n_seeds}" if answer.loss.is_paired else f"{n_seeds} on each side, not the same"
    return f"Baseline: {answer.baseline.name}, {seeds}."


def least_found(answer: CheckAnswer) -> str:
    """Return the loss that an unclear answer would have found."""
    if answer.state != "unclear" or answer.loss is None:
        return ""
    least = percent(answer.loss.smallest_found_frac)
    return f"Only a loss of {least} or more is sure to be detected: make the runs longer to detect less."


def fails_first(answer: CheckAnswer) -> str:
    """Return the SLO that fails first."""
    now, before = answer.candidate.fails_first, answer.baseline.fails_first
    if now is None or answer.state == "unchanged":
        return ""
    limit = "" if now not in answer.slo else f" ≤ {goal(answer.slo[now])}"
    then = "as before" if now == before or before is None else f"where {SHORT.get(before, before)} did"
    return f"{SHORT.get(now, now)}{limit} fails first, {then}."


def why(answer: CheckAnswer) -> str:
    """Return the parts of a request's time and memory that changed most, those behind the first failing SLO first."""
    moved = [part for part in answer.parts if _moved_by(part) >= WORTH_NAMING]
    if not moved or answer.state == "unchanged":
        return ""
    behind = BEHIND.get(str(answer.candidate.fails_first), ())
    moved.sort(key=lambda part: (part.key not in (*behind, "unanswered_frac"), -_moved_by(part)))
    named = []
    for part in moved[:MOST_NAMED]:
        before, now = (amount(value, part.unit) for value in (part.baseline, part.candidate))
        change = "" if part.change_frac is None else f" ({signed(part.change_frac)})"
        named.append(f"{part.label} {before} → {now}{change}")
    return f"At {rate(answer.at.baseline.offered_per_s)} req/s: {listed(named)}."


def changed(answer: CheckAnswer) -> str:
    """Return what was changed, as far as scenario and version show."""
    texts, n_changes = [], len(answer.changes)
    if n_changes == 1:
        only = answer.changes[0]
        texts = [f"Scenario: {only.key} {shown(only.baseline)} → {shown(only.candidate)}."]
    elif n_changes:
        keys = [each.key for each in answer.changes[:MOST_NAMED]]
        texts = [f"Scenario: {n_changes} keys differ, such as {listed(keys)}."]
    elif answer.state != "unchanged":
        is_paired = answer.loss is not None and answer.loss.is_paired
        texts = ["The scenario is the same, so simserve has changed." if is_paired else "Only the seeds differ."]
    before, now = answer.baseline.simserve, answer.candidate.simserve
    return " ".join(texts if before == now else [*texts, f"simserve: {before} → {now}."])


def drawn(answer: CheckAnswer) -> str:
    """Return drawn against nominal load at the lower of the two loads."""
    if answer.load is None:
        return ""
    return f"The seeds drew {rate(answer.load.drawn_per_s)} req/s of a nominal {rate(answer.load.nominal_per_s)}."


def table_rows(answer: CheckAnswer) -> list[Sequence[str]]:
    """Return a row a figure, below the column titles."""
    goodputs, sides = (answer.baseline, answer.candidate), (answer.at.baseline, answer.at.candidate)
    change = NONE if answer.loss is None else signed(-answer.loss.frac)
    rows: list[Sequence[str]] = [
        ("", "baseline", "now", "change"),
        (f"{goodput_name(answer)}, req/s", *(rate(side.goodput_per_s) for side in goodputs), change),
        (f"at {rate(sides[0].offered_per_s)} req/s: all SLOs met", *(share(side.attained_frac) for side in sides), ""),
    ]
    for key in sides[0].by_slo:
        limit = f" ≤ {goal(answer.slo[key])}" if key in answer.slo else ""
        rows.append((f"{SHORT.get(key, key)}{limit} met", *(share(side.by_slo.get(key)) for side in sides), ""))
    for part in answer.parts:
        if part.baseline is not None and part.candidate is not None:
            cells = [amount(value, part.unit) for value in (part.baseline, part.candidate)]
            label = f"mean {part.label}" if part.unit == "s" else part.label
            rows.append((label, *cells, signed(part.change_frac)))
    return rows


def markdown(answer: CheckAnswer) -> str:
    """Return a summary for the page of a CI job."""
    head, *rows = table_rows(answer)
    lines = [
        f"### simserve check: {_escaped(answer.scenario.name)} {'passes' if answer.passes else 'fails'}",
        "",
        _escaped(sentence(answer)),
        "",
        f"| {' | '.join(head)} |",
        "|---|---:|---:|---:|",
        *(f"| {' | '.join(map(_escaped, row))} |" for row in rows),
    ]
    if answer.changes:
        lines += ["", "Changes of the scenario:", ""]
        for each in answer.changes:
            before, now = (_escaped(shown(value)) for value in (each.baseline, each.candidate))
            lines.append(f"- `{' '.join(each.key.replace('`', '').split())}`: {before} → {now}")
    return "\n".join(lines) + "\n"


def junit_xml(answer: CheckAnswer) -> str:
    """Return one JUnit test for CI systems, failed if the check is."""
    failures = str(int(not answer.passes))
    counts = {"tests": "1", "failures": failures, "errors": "0", "skipped": "0"}
    suites = ElementTree.Element("testsuites", {"name": "simserve check", **counts})
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "simserve check", **counts})
    name = f"{goodput_name(answer)} of {answer.scenario.name}"
    test = ElementTree.SubElement(suite, "testcase", {"classname": "simserve.check", "name": _allowed(name)})
    rows = ("  ".join(filter(None, row)) for row in table_rows(answer))
    line, table = _allowed(sentence(answer)), _allowed("\n".join(rows))
    if answer.passes:
        ElementTree.SubElement(test, "system-out").text = f"{line}\n\n{table}\n"
    else:
        failure = ElementTree.SubElement(test, "failure", {"message": line, "type": answer.state})
        failure.text = f"{table}\n"
    ElementTree.indent(suites)
    xml = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{xml}\n'


def baseline_sentence(baseline: Baseline, place: str) -> str:
    """Return what was measured and written."""
    per_s = baseline.goodput_per_s
    return (
        f"{place}: {goodput_name(baseline)} of {baseline.scenario['name']} is {rate(per_s.value)} req/s "
        f"(95% CI {rate(per_s.low)}–{rate(per_s.high)}, {plural(baseline.n_seeds, 'seed')}). Commit the file."
    )


def _moved_by(part: PartOfSides) -> float:
    """Return the change as a share of what it was; infinite where it was nothing."""
    if part.baseline == 0 and part.candidate:
        return math.inf
    return abs(part.change_frac or 0.0)


def shown(value: Any) -> str:
    """Return a value of a scenario as JSON; a missing one as `nothing`."""
    if isinstance(value, float):
        return f"{value:g}"
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)


def _escaped(text: str) -> str:
    """Return text that Markdown shows as it is, without cell, tag or emphasis, on one line."""
    return re.sub(r"([\\|<>*_`\[\]~&])", r"\\\1", " ".join(text.split()))


def _allowed(text: str) -> str:
    """Return text without characters that XML forbids (XML 1.0, section 2.2)."""
    return re.sub(r"[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "�", text)
