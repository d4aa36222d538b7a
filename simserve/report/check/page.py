"""The page of a check: the gate's decision, both sides measure by measure, and what to do next."""

from collections.abc import Sequence

from simserve.metrics.answers.baseline import LOOKS
from simserve.metrics.answers.check import CheckAnswer, State
from simserve.metrics.goal import GOAL_FRAC
from simserve.report.charts import Figure, axis, figure, numbers, scatter, text
from simserve.report.check import words
from simserve.report.document import Cautions, Chapter, Command, Document, Explained, Table, Tile
from simserve.report.formats import NONE, as_sentence, ci_95, listed, percent, plural, rate, share, signed, slo_terms

TITLES: dict[State, tuple[str, str]] = {
    "unchanged": ("none", "No change"),
    "better": ("met", "Improvement"),
    "same": ("none", "Statistically tied"),
    "within tolerance": ("met", "Loss within the tolerance"),
    "unclear": ("edge", "Pass, but not significant"),
    "lost": ("missed", "Regression"),
}
"""State and title of the page for each state of the answer."""

NEXT: dict[State, tuple[str, str]] = {
    "better": ("Record the gain, so that a later loss of it fails:", "update"),
    "lost": ("Undo the change. If the loss is intended, record it as the new baseline:", "update"),
    "unclear": (
        "Make the runs longer, record the baseline of the unchanged scenario again (--update), then repeat the check:",
        "again",
    ),
}
"""Sentence before the next command, and which that is; any other state repeats the check."""

AGAIN = "Nothing to do. Repeat the check after the next change:"

AT_REF = {
    "better": "Merge the change: the commit it makes is the next baseline. Repeat the check after the next change:",
    "lost": "Undo the change, then repeat the check:",
    "unclear": "Make the runs longer in both commits, then repeat the check:",
}
"""Sentences in place of NEXT where the baseline is a git ref, which nothing records."""

FINE = "Both sides have the same load, SLO and goal."


def tell(answer: CheckAnswer, command: Sequence[str] = ()) -> Document:
    """Return all that a check tells; `command` is the command line of the check without its outputs."""
    state, title = TITLES[answer.state]
    table = Table.of(words.table_rows(answer), wraps=True)
    lead = words.statement(answer)
    lead = lead if lead.startswith(words.goodput_name(answer)) else as_sentence(lead)
    cause = " ".join(filter(None, (words.fails_first(answer), words.why(answer), words.changed(answer))))
    setup = (cause, " ".join(filter(None, (_question(answer), words.compared_with(answer)))))
    return Document(
        command="check",
        name=answer.scenario.name,
        state=state,
        title=title,
        lead=lead,
        setup=[each for each in setup if each],
        tiles=_tiles(answer),
        parts=(
            Chapter("measures", "Both sides", [table], _at(answer)),
            *_changes(answer),
            Cautions(_cautions(answer), FINE),
            *_next(answer, command),
        ),
        made={
            "simserve": answer.candidate.simserve,
            "scenario": answer.scenario.digest,
            "seeds": f"{answer.scenario.seed} and on, {answer.n_seeds} a side",
        },
        brief=(words.sentence(answer), table),
        warnings=answer.warnings,
        chart=_parts_chart(answer),
    )


def _parts_chart(answer: CheckAnswer) -> Figure:
    """Return a row a part of time or memory: its change as a share of the baseline. The page has a table instead."""
    changes = {text(part.label): part.change_frac for part in answer.parts if part.change_frac is not None}
    dots = scatter("markers", numbers([*changes.values()]), [*changes], marker={"color": "$c1", "size": 11})
    x_axis = axis("Change from the baseline", tickformat="+.3~%", rangemode="tozero")
    margin = {"l": 132, "r": 18, "t": 8, "b": 50}
    return figure([dots], 70 + 26 * len(changes), xaxis=x_axis, yaxis=axis(autorange="reversed"), margin=margin)


def _question(answer: CheckAnswer) -> str:
    """Return what p99 goodput is, and how much of it may be lost."""
    terms = slo_terms(answer.slo)
    classes = f"the SLOs of their classes ({listed(list(answer.slo_classes))})" if answer.slo_classes else ""
    goal = f"{answer.goal_frac * 100:.4g}% of requests meet {listed([each for each in (terms, classes) if each])}"
    lost = f"at most {percent(answer.tolerance_frac)} of it may be lost"
    return f"{words.goodput_name(answer)} is the highest rate at which {goal}; {lost}."


def _tiles(answer: CheckAnswer) -> tuple[Tile, ...]:
    at, loss = answer.at, answer.loss
    before, now = at.baseline.attained_frac, at.candidate.attained_frac
    points = "" if before is None or now is None else f" ({(now - before) * 100:+z.3g} points)"
    goodput = [f"was {rate(answer.baseline.goodput_per_s)} req/s"]
    if loss is not None:
        rates = f"{rate(answer.baseline.goodput_per_s)} → {rate(answer.candidate.goodput_per_s)} req/s"
        goodput = [rates, ci_95(-loss.high_frac, -loss.low_frac)]
    exit_code = f"tolerance {percent(answer.tolerance_frac)}, exit code {int(not answer.passes)}"
    return (
        Tile("Decision", "Passes" if answer.passes else "Fails", [exit_code]),
        Tile(words.goodput_name(answer), NONE if loss is None else signed(-loss.frac), goodput),
        Tile(f"All SLOs met at {rate(at.baseline.offered_per_s)} req/s", share(now), [f"was {share(before)}{points}"]),
        Tile("Detectable loss", NONE if loss is None else percent(loss.smallest_found_frac), ["or more"]),
        Tile("False alarms, at most", percent(answer.false_alarms_frac), ["of changes within the tolerance"]),
        Tile("Looks", str(len(answer.looks)), [f"after {listed(list(map(str, answer.looks)))} seeds a side"]),
    )


def _at(answer: CheckAnswer) -> str:
    """Return which runs the measures are means of."""
    at = answer.at.baseline
    where = f"at the baseline's lower load, {rate(at.offered_per_s)} req/s"
    means = f"Below {words.goodput_name(answer)}: means over {plural(at.n_runs, 'run')} {where}."
    is_far = answer.load is not None and answer.load.off_text is not None  # which is among the cautions
    return means if is_far else " ".join(filter(None, (means, words.drawn(answer))))


def _changes(answer: CheckAnswer) -> list[Chapter]:
    """Return the keys of the scenario that differ, where the answer cannot list them all."""
    if len(answer.changes) < 2:
        return []
    pairs = [(each.key, f"{words.shown(each.baseline)} → {words.shown(each.candidate)}") for each in answer.changes]
    return [Chapter("changes", "Changes of the scenario", [Explained(pairs, is_wide=True)])]


def _cautions(answer: CheckAnswer) -> list[str]:
    """Return the warnings, and what the gate itself cannot tell."""
    early = ""
    if answer.state in ("same", "within tolerance") and answer.n_seeds <= LOOKS[0]:
        n_seeds = plural(answer.n_seeds, "seed")
        early = f"The pass rests on {n_seeds}: a change that slows only a few loads in a hundred can slip through."
    return [*map(as_sentence, answer.warnings), *filter(None, (words.least_found(answer), early))]


def _next(answer: CheckAnswer, command: Sequence[str]) -> list[Chapter]:
    intent, which = NEXT.get(answer.state, (AGAIN, "again"))
    if "--against" in command:
        intent, which = AT_REF.get(answer.state, intent), "again"
    parts = [*command]
    if which == "update":  # without --goal, that has the default, not the goal of the baseline
        is_given = "--goal" in command or answer.goal_frac == GOAL_FRAC
        parts += ["--update"] if is_given else ["--goal", str(answer.goal_frac), "--update"]
    return [Chapter("next", "Next", [Command(parts)], intent)] if command else []
