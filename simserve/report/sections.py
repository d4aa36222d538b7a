"""Words and tables of a page as HTML; every text that comes from outside goes through `text` or `prose`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from simserve.metrics.goal import GOAL_FRAC
from simserve.report.formats import (
    LATENCIES,
    NONE,
    SHORT,
    engine_words,
    goal,
    interval,
    listed,
    number,
    plural,
    rate,
    seconds,
    share,
)
from simserve.report.headline import (
    CONFIDENCE_ROW,
    HEADLINES,
    LEVELS,
    at_load,
    between,
    confidence_cells,
    detail,
    drawn_load,
    how_sure,
    latency_cells,
    over_runs,
    prediction,
)
from simserve.report.mechanisms import mechanisms
from simserve.report.replicas import COLUMNS, ReplicaRow
from simserve.report.run_warnings import cautions
from simserve.report.summary_reader import SummaryReader, gpus_of, has_changed

GLYPHS = {
    "met": "✓",
    "missed": "✕",
    "edge": "≈",
    "few": "…",
    "saturated": "▲",
    "critical": "△",
    "near": "△",
    "beyond": "▲",
    "nothing": "∅",
    "unmeasured": "∅",
    "none": "○",
}
"""A shape for each decision, so that color is never the only sign."""

MANY_REPLICAS = 12
"""A longer table scrolls in its own frame on a screen."""


def text(value: object) -> str:
    """Return any text, made harmless inside HTML."""
    return escape(str(value))


def prose(value: object) -> str:
    """Return text with each number on one line with its unit, and ranges whole."""
    return re.sub(r"(?<=\d) (?=(?:ms|s|h|min)\b|%)|(?<=≤) ", "\u00a0", text(value)).replace("–", "\u2060–\u2060")


def header(reader: SummaryReader) -> str:
    """Return the decision as a headline, its reason, what was run, and the six numbers that matter most."""
    sentence = detail(reader)
    return (
        f'<header class="{reader.state}"><p class="eyebrow">simserve · {text(reader.name)}</p>'
        f'<h1><span class="mark" aria-hidden="true">{GLYPHS[reader.state]}</span>{text(HEADLINES[reader.state])}</h1>'
        f'<p class="lead">{prose(sentence[0].upper() + sentence[1:])}</p>'
        f"{_predicted(reader)}{_setup(reader)}{_tiles(reader)}</header>"
    )


def _predicted(reader: SummaryReader) -> str:
    sentence = prediction(reader.summary)
    return "" if sentence is None else f'<p class="setup">{prose(sentence)}</p>'


def _setup(reader: SummaryReader) -> str:
    pools = listed([pool_words(pool) for pool in reader.pools])
    window_s = reader.number("window", "duration_s")
    measured = f"{reader.requested} in {seconds(window_s)}" if window_s else "No window"
    warmup_s = reader.number("window", "start_s")
    after = f" after {seconds(warmup_s)} of warm-up" if warmup_s else ""
    more = f" {drawn_load(reader)}"
    if reader.replications:
        more += f" Figures are means over {over_runs(reader)}; charts, replicas, classes and tenants are of the first."
    return f'<p class="setup">{prose(pools)}. {prose(measured + after)}.{prose(more.rstrip())}</p>'


def pool_words(pool: Mapping[str, Any]) -> str:
    """Return `2 replicas of llama-3.1-8b on 4 × h100-sxm each, with 2 schedulers (...)`, see `engine_words`."""
    n_gpus, n_ranks = int(pool["gpus_per_replica"]), int(pool["ranks_per_replica"])
    gpus = f"{n_gpus} × {pool['gpu']}" if n_gpus > 1 else str(pool["gpu"])
    gpus += " each" if n_gpus > 1 and int(pool["n_replicas"]) > 1 else ""
    gpus += f", with {n_ranks} schedulers" if n_ranks > 1 else ""
    role = f"{pool['role']}: " if pool.get("role", "both") != "both" else ""
    replicas = plural(int(pool["n_replicas"]), "replica")
    replicas += f" at the start ({rate(gpus_of(pool))} GPUs on average)" if has_changed(pool) else ""
    return f"{role}{replicas} of {pool['model']} on {gpus} ({engine_words(pool)})"


def _tiles(reader: SummaryReader) -> str:
    tiles = [_attainment_tile(reader), _goodput_tile(reader)]
    tiles += [_latency_tile(reader, key) for key in ("ttft_s", "tpot_s", "itl_s", "e2e_s")]
    return tiles_of(tiles)


def tiles_of(tiles: Iterable[str]) -> str:
    """Return up to six tiles in a row; they wrap on a phone."""
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def tile(label: str, value: str, lines: Iterable[str]) -> str:
    """Return a label, a large value, and lines below that are HTML already."""
    below = "".join(f"<dd>{line}</dd>" for line in lines if line)
    return f'<div class="tile"><dt>{text(label)}</dt><dd class="value">{prose(value)}</dd>{below}</div>'


def _attainment_tile(reader: SummaryReader) -> str:
    if not reader.has_slo:
        n_arrived = reader.n("arrived")
        finished = share(reader.n("finished") / n_arrived if n_arrived else None)
        return tile("Finished", finished, [prose(f"of {reader.requested}")])
    ends, answer = reader.attainment_interval, reader.answer or {}
    lines = [f"95% CI {interval(*ends)}" if ends else "no interval: too few"]
    is_of_class = answer.get("slo_class") is not None
    lines += [] if is_of_class else [at_load(reader).strip()]
    of_runs = not is_of_class and answer.get("basis", "run") != "run"
    lines.append(f"over {plural(answer['n_runs'], 'run')}" if of_runs else f"of {reader.requested}")
    return tile("SLO attainment", share(reader.attainment), map(prose, lines))


def _goodput_tile(reader: SummaryReader) -> str:
    offered = prose(f"of {rate(reader.number('offered_per_s'))}/s offered")
    if not reader.has_slo:
        return tile("Throughput", f"{rate(reader.number('requests_per_s'))}/s", [offered])
    per_gpu = reader.number("goodput", "per_gpu_s")
    more = "" if per_gpu is None else prose(f"{rate(per_gpu)}/s per GPU")
    return tile("Goodput", f"{rate(reader.number('goodput', 'per_s'))}/s", [offered, more])


def _latency_tile(reader: SummaryReader, key: str) -> str:
    """Return the tile of a p99, with its prediction interval, the median and the share within the SLO."""
    lines = [prose(f"p50 {seconds(reader.percentile(key, 'p50'))}")]
    ends = reader.predicted(key, "p99")
    if ends is not None:
        lines.insert(0, prose(f"90% PI {between(ends)}"))
    within = number(((reader.answer or {}).get("by_slo") or {}).get(key))
    if within is not None and key in reader.slo and not reader.classes:
        name, glyph = _decided(reader, within)
        lines.append(f'<span class="{name}">{glyph}{prose(f"{share(within)} ≤ {goal(reader.slo[key])}")}</span>')
    return tile(f"{SHORT[key]} p99", seconds(reader.percentile(key, "p99")), lines)


def _decided(reader: SummaryReader, within_frac: float) -> tuple[str, str]:
    """Return class and glyph of one goal: a tick only where the SLO is met, a cross only where it is missed."""
    if reader.state == "met":
        return "ok", "✓ "
    return ("over", "✕ ") if reader.state == "missed" and within_frac < GOAL_FRAC else ("", "")


def warning_section(reader: SummaryReader) -> str:
    """Return what stands between these numbers and a decision."""
    return warning_list(cautions(reader), "Calibrated costs, verified KV capacity, enough requests, not saturated.")


def warning_list(sentence: Sequence[str], otherwise: str) -> str:
    """Return cautions, a sentence each; or what is fine where there is none."""
    items = "".join(f"<li>{prose(caution)}</li>" for caution in sentence)
    fine = f'<li class="fine">{prose(otherwise)}</li>'
    return f'<section class="trust" id="trust"><h2>What to trust</h2><ul>{items or fine}</ul></section>'


def percentiles(reader: SummaryReader) -> str:
    """Return one table of every latency, p50 to p99.9."""
    head = ["", *LEVELS, *(["SLO"] if reader.slo else [])]
    rows = []
    for key, meaning in LATENCIES.items():
        rows.append((f"{text(SHORT[key])}<small>{text(meaning)}</small>", latency_cells(reader, key)))
        rows += [(f"<small>{prose(CONFIDENCE_ROW)}</small>", cells) for cells in confidence_cells(reader, key)]
    of_all = ", of all classes together" if len(reader.classes) > 1 else ""
    note = "TPOT leaves out the first token; ITL pools every gap of every request."
    scope = f"Requests that arrived in the window{of_all}."
    return section("percentiles", "Percentiles", f"{scope} {note} {how_sure(reader)}", table(head, rows))


def use(reader: SummaryReader) -> str:
    """Return throughput and use, as pairs."""
    return section("use", "Throughput and utilization", "", _facts(reader.facts()))


def mechanism_list(reader: SummaryReader) -> str:
    """Return what each mechanism of the run did, under its name; nothing where it had none."""
    result = mechanisms(reader)
    body = "".join(
        f'<div class="mechanism"><h3>{text(title)}</h3>{_facts(facts)}</div>' for title, facts in result.items()
    )
    return section("mechanisms", "Mechanisms", "", body) if result else ""


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    pairs = "".join(
        f'<div class="fact"><dt>{text(name)}</dt><dd>{prose(value)}</dd></div>'
        for name, value in facts
        if not value.startswith(NONE)
    )
    return f'<dl class="facts">{pairs}</dl>'


def replicas(rows: Sequence[ReplicaRow]) -> str:
    """Return a table with a row for each replica."""
    if not rows:
        return section("replicas", "Replicas", "", '<p class="empty">No replica ran.</p>')
    places = [", ".join(filter(None, [row.pool, row.life])) for row in rows]
    body = [(f"{row.replica}<small>{text(at)}</small>", row.cells()) for row, at in zip(rows, places, strict=True)]
    note = "Window requests by the replica that prefilled or decoded them; utilization is over the whole run."
    return section("replicas", "Replicas", note, table(("Replica", *COLUMNS), body, is_tall=len(rows) > MANY_REPLICAS))


def scenario(scenario_yaml: str) -> str:
    """Return the resolved scenario, folded away."""
    body = f"<details><summary>Show the YAML</summary><pre>{text(scenario_yaml)}</pre></details>"
    return section("scenario", "Scenario", "Fully resolved: running it again gives identical tables.", body)


def footer(reader: SummaryReader) -> str:
    """Return where the page comes from."""
    made = {"simserve": "version", "scenario": "digest", "seed": "seed"}
    sentence = [f"{name} {reader.summary[key]}" for name, key in made.items() if reader.summary.get(key) is not None]
    wall_s, simulated_s = reader.number("wall_s"), reader.number("simulated_s")
    if wall_s is not None and simulated_s is not None:
        sentence.append(f"{seconds(simulated_s)} simulated in {seconds(wall_s)}")
    return f"<footer>{prose(' · '.join(sentence))}</footer>"


def section(name: str, title: str, note: str, body: str) -> str:
    """Return a part of the page; `body` is HTML already."""
    sentence = f'<p class="note">{prose(note)}</p>' if note else ""
    return f'<section id="{name}"><h2>{text(title)}</h2>{sentence}{body}</section>'


def table(head: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], *, is_tall: bool = False) -> str:
    """Return a table; the names of rows are HTML already, everything else is text."""
    top = "".join(f'<th scope="col">{text(cell)}</th>' if cell else "<td></td>" for cell in head)
    lines = (
        f'<tr><th scope="row">{name}</th>{"".join(f"<td>{prose(cell)}</td>" for cell in cells)}</tr>'
        for name, cells in rows
    )
    frame = '<div class="scroll tall" tabindex="0">' if is_tall else '<div class="scroll" tabindex="0">'
    return f"{frame}<table><thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
