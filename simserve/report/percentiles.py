"""Percentiles of each latency with their intervals, for page and terminal, and what these numbers stand on."""

from collections.abc import Iterator

from simserve.metrics.goal import probability
from simserve.report.document import Chapter, Row, Table
from simserve.report.formats import LATENCIES, NONE, SHORT, count, goal, listed, plural, seconds, span
from simserve.report.nominal_load import drawn_load
from simserve.report.run_view import FEWEST, RunView

LEVELS = ("p50", "p90", "p95", "p99", "p99.9")

CONFIDENCE_ROW = "95%"
"""What a row of intervals is called."""


def percentiles(reader: RunView) -> Chapter:
    """Return the section of the page, one table of all latencies."""
    rows = [
        Row(SHORT[key], cells, LATENCIES[key]) if key else Row("", cells, CONFIDENCE_ROW)
        for key, cells in _rows(reader)
    ]
    of_all = ", of all classes together" if len(reader.classes) > 1 else ""
    note = "TPOT leaves out the first token; ITL pools every gap of every request."
    scope = f"Requests that arrived in the window{of_all}."
    return Chapter("percentiles", "Percentiles", [Table(_heads(reader), rows)], f"{scope} {note} {how_sure(reader)}")


def terminal_table(reader: RunView) -> Table:
    """Return the table of a terminal; the last column is the SLO, if any."""
    rows = [Row(SHORT[key] if key else CONFIDENCE_ROW, cells) for key, cells in _rows(reader)]
    return Table(_heads(reader), rows, dropped=("p90", "p95"))


def _heads(reader: RunView) -> tuple[str, ...]:
    return ("", *LEVELS, *(("SLO",) if reader.slo else ()))


def _rows(reader: RunView) -> Iterator[tuple[str | None, list[str]]]:
    """Yield each latency with its cells, guesses marked, and below them those of its intervals, if any is known."""
    for key in LATENCIES:
        cells = [seconds(reader.number(f"{key}.{level}")) for level in LEVELS]
        guesses = [reader.is_guess(level) and cell != NONE for level, cell in zip(LEVELS, cells, strict=True)]
        marked = [f"~{cell}" if is_guess else cell for cell, is_guess in zip(cells, guesses, strict=True)]
        yield key, [*marked, *([goal(reader.slo.get(key))] if reader.slo else [])]
        ends = [reader.confidence(key, level) for level in LEVELS]
        if any(ends):
            yield None, [NONE if each is None else span(*each) for each in ends]


def how_sure(reader: RunView) -> str:
    """Return what load the latencies are of, what the rows of intervals are, and what marks a guess."""
    load = drawn_load(reader)
    sentences = [load] if load else []
    ends = [each for key in LATENCIES for level in LEVELS if (each := reader.confidence(key, level))]
    if ends:
        where = f"Figures are means over {over_runs(reader)}. " if reader.replications else ""
        sentences.append(f"{where}{CONFIDENCE_ROW} rows are confidence intervals (sampling noise only).")
    if any(high is None for _, high in ends):
        sentences.append("≥: the run is too short for an upper bound.")
    guesses = [level for level in LEVELS if reader.is_guess(level) and reader.n("finished")]
    if guesses:
        least = listed([f"{count(FEWEST[level])} for a {level}" for level in guesses])
        sentences.append(f"~: a guess, with fewer requests than {least}.")
    return " ".join(sentences)


def over_runs(reader: RunView) -> str:
    """Return `10 runs (seeds 0 to 9)`."""
    seeds = reader.replications.seeds if reader.replications else (0,)
    return f"{len(seeds)} runs (seeds {seeds[0]} to {seeds[-1]})"


def prediction(reader: RunView) -> str:
    """Return what replays with other loads and costs came to, for what the SLO limits; "" where nothing finished."""
    result = reader.summary.prediction
    keys = dict.fromkeys((*reader.slo, "ttft_s", "tpot_s"))
    known = {key: ends for key in keys if result and (ends := reader.predicted(key, "p99")) is not None}
    if not result or not known:
        return ""
    intervals = listed([f"p99 {SHORT[key]} is {span(*ends)}" for key, ends in known.items()])
    n = result.replays
    of_all = " over all classes" if len(reader.classes) > 1 else ""
    confidence = f"{result.confidence * 100:.0f}% prediction interval{of_all}"
    text = f"Allowing for load and cost-model error ({n} perturbed replays), {intervals} ({confidence})."
    n_met, chance = result.n_met, result.slo_probability
    if n_met is not None:
        text += f" {count(n_met)} of {plural(n, 'replay')} meet the SLO"
        text += "." if chance is None else f"; the probability for a window like this is {probability(chance)}."
    return text
