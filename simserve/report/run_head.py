"""The head of a run's page: the decision, its reason, what was run, and the six numbers that matter most."""

from simserve.metrics.goal import GOAL_FRAC
from simserve.report.document import Headline
from simserve.report.formats import (
    SHORT,
    goal,
    number,
    plural,
    rate,
    seconds,
    share,
    span,
)
from simserve.report.headline import STATES, detail, level_of, ratio_span, ratio_text
from simserve.report.nominal_load import drawn_load
from simserve.report.percentiles import over_runs, prediction
from simserve.report.pools import pools_words
from simserve.report.sections import prose, tile
from simserve.report.summary_reader import SummaryReader


def run_head(reader: SummaryReader) -> Headline:
    """Return the head."""
    lead, predicted = detail(reader), prediction(reader.summary)
    setup = (_setup(reader),) if predicted is None else (predicted, _setup(reader))
    latencies = (_latency_tile(reader, key) for key in ("ttft_s", "tpot_s", "itl_s", "e2e_s"))
    tiles = (_margin_tile(reader), _goodput_tile(reader), *latencies)
    return Headline("", reader.name, reader.state, STATES[reader.state].title, lead[0].upper() + lead[1:], setup, tiles)


def _setup(reader: SummaryReader) -> str:
    window_s, warmup_s = reader.number("window", "duration_s"), reader.number("window", "start_s")
    measured = f"{reader.requested} in {seconds(window_s)}" if window_s else "No window"
    after = f" after {seconds(warmup_s)} of warm-up" if warmup_s else ""
    text = f"{pools_words(reader.pools)} {measured}{after}. {drawn_load(reader)}"
    if not reader.replications:
        return text.rstrip()
    means = f"Figures are means over {over_runs(reader)}"
    return f"{text} {means}; charts, replicas, classes and tenants are of the first."


def _margin_tile(reader: SummaryReader) -> str:
    """Return the tile of r, or of what finished where there is no SLO."""
    decision = reader.decision
    if decision is None:
        n_arrived = reader.n("arrived")
        finished = share(reader.n("finished") / n_arrived if n_arrived else None)
        return tile("Finished", finished, [prose(f"of {reader.requested}")])
    if decision.r is None or decision.r_noise is None or decision.r_total is None:
        return tile("SLO attainment", share(reader.attainment), [prose(f"of {reader.requested}")])
    lines = [f"95% CI {ratio_span(decision.r_noise)}"]
    lines += [f"with cost error {ratio_span(decision.r_total)}"] if decision.n_draws else []
    lines.append(f"{share(decision.attained_frac)} attained, {plural(decision.n_runs, 'run')}")
    return tile(f"{level_of(decision)} latency/limit", ratio_text(decision.r), map(prose, lines))


def _goodput_tile(reader: SummaryReader) -> str:
    offered = prose(f"of {rate(reader.number('offered_per_s'))}/s offered")
    if not reader.has_slo:
        return tile("Throughput", f"{rate(reader.number('requests_per_s'))}/s", [offered])
    per_gpu = reader.number("goodput", "per_gpu_s")
    more = "" if per_gpu is None else prose(f"{rate(per_gpu)}/s per GPU")
    return tile("Goodput", f"{rate(reader.number('goodput', 'per_s'))}/s", [offered, more])


def _latency_tile(reader: SummaryReader, key: str) -> str:
    """Return the tile of a p99, with its prediction interval, the median and the share within the SLO."""
    ends = reader.predicted(key, "p99")
    lines = [] if ends is None else [prose(f"90% PI {span(*ends)}")]
    lines.append(prose(f"p50 {seconds(reader.number(key, 'p50'))}"))
    within = number(((reader.answer or {}).get("by_slo") or {}).get(key))
    if within is not None and key in reader.slo and not reader.classes:
        name, glyph = _decided(reader, within)
        lines.append(f'<span class="{name}">{glyph}{prose(f"{share(within)} ≤ {goal(reader.slo[key])}")}</span>')
    return tile(f"{SHORT[key]} p99", seconds(reader.number(key, "p99")), lines)


def _decided(reader: SummaryReader, within_frac: float) -> tuple[str, str]:
    """Return class and glyph of one goal: a tick only where the SLO is met, a cross only where it is missed."""
    if reader.state == "met":
        return "ok", "✓ "
    return ("over", "✕ ") if reader.state == "missed" and within_frac < GOAL_FRAC else ("", "")
