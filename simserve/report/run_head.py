"""The head of a run: the decision, its reason, what was run, the six numbers that matter most, and the terminal's."""

from simserve.metrics.goal import GOAL_FRAC
from simserve.report.document import Document, Table, Tile, Toned
from simserve.report.formats import SHORT, goal, plural, rate, seconds, share, span
from simserve.report.groups import group_tables
from simserve.report.headline import STATES, detail, level_of, ratio_span, ratio_text
from simserve.report.mechanisms import asked_for
from simserve.report.members import fleet_sentences
from simserve.report.nominal_load import drawn_load, unit_of
from simserve.report.percentiles import how_sure, over_runs, prediction, terminal_table
from simserve.report.pools import pools_words
from simserve.report.run_view import RunView
from simserve.report.slowest import terminal_sentence


def run_head(reader: RunView) -> Document:
    """Return the document of a run without the parts of its page."""
    title, lead, predicted = STATES[reader.state].title, detail(reader), prediction(reader)
    latencies = (_latency_tile(reader, key) for key in ("ttft_s", "tpot_s", "itl_s", "e2e_s"))
    brief: list[str | Table] = [
        f"{title}: {lead}",
        terminal_sentence(reader),
        terminal_table(reader),
        how_sure(reader),
        *group_tables(reader),
        *asked_for(reader),
        f"Fleet: {changed}" if (changed := fleet_sentences(reader)) else "",
        predicted,
    ]
    summary, wall_s, simulated_s = reader.summary, reader.number("wall_s"), reader.number("simulated_s")
    made: dict[str, object] = {"simserve": summary.version, "scenario": summary.digest, "seed": summary.seed}
    if wall_s is not None and simulated_s is not None:
        made[f"{seconds(simulated_s)} simulated in"] = seconds(wall_s)
    return Document(
        command="",
        name=reader.summary.name,
        state=reader.state,
        title=title,
        lead=lead[0].upper() + lead[1:],
        kept=_kept(reader),
        setup=[each for each in (predicted, _setup(reader)) if each],
        tiles=(_margin_tile(reader), _goodput_tile(reader), *latencies),
        made=made,
        brief=brief,
        warnings=reader.warnings,
    )


def _kept(reader: RunView) -> list[str]:
    """Return load, fleet and cost."""
    load = reader.summary.load
    at_load = rate(reader.number("offered_per_s") if load.nominal_per_s is None else load.nominal_per_s)
    usd_per_hour = sum(pool.n_gpus * (pool.price_per_gpu_hour_usd or 0.0) for pool in reader.pools)
    return [f"{at_load} {unit_of(load)}", reader.gpus, *([f"{usd_per_hour:,.2f} USD/h"] if usd_per_hour else [])]


def _setup(reader: RunView) -> str:
    window_s, warmup_s = reader.number("window.duration_s"), reader.number("window.start_s")
    measured = f"{reader.requested} in {seconds(window_s)}" if window_s else "No window"
    after = f" after {seconds(warmup_s)} of warm-up" if warmup_s else ""
    text = f"{pools_words(reader.pools)} {measured}{after}. {drawn_load(reader)}"
    if not reader.replications:
        return text.rstrip()
    means = f"Figures are means over {over_runs(reader)}"
    return f"{text} {means}; charts, replicas, classes and tenants are of the first."


def _margin_tile(reader: RunView) -> Tile:
    """Return the tile of r, or of what finished where there is no SLO."""
    decision = reader.decision
    if decision is None:
        n_arrived = reader.n("arrived")
        finished = share(reader.n("finished") / n_arrived if n_arrived else None)
        return Tile("Finished", finished, [f"of {reader.requested}"])
    if decision.r is None or decision.r_noise is None or decision.r_total is None:
        return Tile("SLO attainment", share(reader.attainment), [f"of {reader.requested}"])
    lines = [f"95% CI {ratio_span(decision.r_noise)}"]
    lines += [f"with cost error {ratio_span(decision.r_total)}"] if decision.n_draws else []
    lines.append(f"{share(decision.attained_frac)} attained, {plural(decision.n_runs, 'run')}")
    return Tile(f"{level_of(decision)} latency/limit", ratio_text(decision.r), lines)


def _goodput_tile(reader: RunView) -> Tile:
    offered = f"of {rate(reader.number('offered_per_s'))}/s offered"
    if not reader.has_slo:
        return Tile("Throughput", f"{rate(reader.number('requests_per_s'))}/s", [offered])
    per_gpu = reader.number("goodput.per_gpu_s")
    more = "" if per_gpu is None else f"{rate(per_gpu)}/s per GPU"
    return Tile("Goodput", f"{rate(reader.number('goodput.per_s'))}/s", [offered, more])


def _latency_tile(reader: RunView, key: str) -> Tile:
    """Return the tile of a p99, with its prediction interval, the median and the share within the SLO."""
    ends = reader.predicted(key, "p99")
    lines: list[str | Toned] = [] if ends is None else [f"90% PI {span(*ends)}"]
    lines.append(f"p50 {seconds(reader.number(f'{key}.p50'))}")
    within = reader.answer.by_slo.get(key) if reader.answer else None
    if within is not None and key in reader.slo and not reader.classes:
        tone, glyph = _decided(reader, within)
        lines.append(Toned(f"{glyph}{share(within)} ≤ {goal(reader.slo[key])}", tone))
    return Tile(f"{SHORT[key]} p99", seconds(reader.number(f"{key}.p99")), lines)


def _decided(reader: RunView, within_frac: float) -> tuple[str, str]:
    """Return tone and glyph of one goal: a tick only where the SLO is met, a cross only where it is missed."""
    if reader.state == "met":
        return "ok", "✓ "
    return ("over", "✕ ") if reader.state == "missed" and within_frac < GOAL_FRAC else ("", "")
