"""The page of a resilience study: what failures cost, and the spares that the pool needs."""

from collections.abc import Callable, Sequence

from simserve.metrics.answers.parts import Interval
from simserve.metrics.answers.resilience import ResilienceAnswer, SpareOption, Transient, chosen_of
from simserve.metrics.error_budget import MONTH_MIN, MOST_MARGIN
from simserve.report.charts import axis, figure, hover, numbers, scatter
from simserve.report.document import Chapter, Document, Explained, Plot, Row, Table, Tile
from simserve.report.formats import NONE, count, plural, rate, seconds, share, slo_terms, span
from simserve.report.headline import ratio_text
from simserve.report.margin import margin

OPTIONS = ("spares", "USD/h", "min below", "of states", "of transients", "attained", "budget")
STATES = ("replicas", "serving", "of a month", "latency/limit", "attained", "goal")
TRANSIENTS = ("failure", "a month", "repair", "missed", "of them lost", "below the goal", "recovers in")

MONTH = "Expected minutes of a month of 30 days below the goal."
TIME = "By the rates of failures and the time of repairs; latency/limit is r, the quantile at the goal."
COST = "Against the same seeds without it; 95% intervals over seeds, each with the failure at another instant."
ASSUMED = [
    ("A repair takes", "the time until it is known and a typical start, with a new machine unless a process failed."),
    ("Active spares", "serve as all others do."),
    ("Warm spares", "are loaded, and take over once a failure is known."),
    ("Cold spares", "hold GPUs and start once a failure is known; they wait for no machine."),
    ("A transient", "is that of the fewest replicas it was run with, at most; more of them feel it less."),
    ("A slow replica", "counts by its share of time; nothing notices it, so no spare takes over."),
    ("Failures", "are independent, but for replicas of one node or rack."),
]
COLORS = {"none": "$c1", "active": "$c1", "warm": "$c3", "cold": "$c2"}
KEYS = [("dot k1", "active"), ("dot k3", "warm"), ("dot k2", "cold"), ("dash k5", "budget")]


def tell(answer: ResilienceAnswer) -> Document:
    """Return all that the study tells."""
    best = None if answer.best is None else answer.options[answer.best]
    state, title, lead = headline_of(answer)
    spares, transients = [_options(answer.options)] if answer.options else [], _transients(answer.transients)
    runs = plural(answer.n_runs, "run")
    often = {
        f"A {each.what} failure": f"once in {rate(each.mtbf_s / 86_400)} days; {each.source}."
        for each in answer.transients
    }
    return Document(
        command="resilience",
        name=answer.scenario.name,
        state=state,
        title=title,
        lead=lead,
        kept=[] if best is None else [f"{best.usd_per_hour or 0.0:,.2f} USD/h of spares"],
        setup=(f"Pool {answer.pool} of {plural(answer.replicas, 'replica')}, {runs}.",),
        tiles=[] if best is None else _tiles(answer, best),
        parts=(
            *([Chapter("cost", "Minutes against cost", [_plot(answer)])] if spares else ()),
            *([Chapter("spares", "Spares", spares, MONTH)] if spares else ()),
            *([_states(best or answer.options[-1])] if spares else ()),
            Chapter("transients", "One failure of each kind", [transients], COST),
            *margin({"": answer.decision}),
            Chapter("assumed", "Assumptions", [Explained([*often.items(), *ASSUMED], is_wide=True)]),
        ),
        made={"simserve": answer.version, "scenario": answer.scenario.digest},
        brief=(f"{title}: {lead}", *spares, transients, f"{runs}."),
        warnings=answer.warnings,
    )


def _name(option: SpareOption) -> str:
    return plural(option.spare, f"{option.kind} spare") if option.spare else "no spares"


def headline_of(answer: ResilienceAnswer) -> tuple[str, str, str]:
    """Return the state, the title, and the minutes of the option to take, or of the best of the others."""
    best = None if answer.best is None else answer.options[answer.best]
    if not answer.options:
        text = (
            f"Pool {answer.pool} has an autoscaler and spares of its own, so numbers of them are not compared. "
            "The table has what one failure of each kind costs."
        )
        return "nothing", "Transients alone", text
    chosen, last = chosen_of(answer.options, answer.best), answer.options[-1]
    text = (
        f"With {_name(chosen)} {rate(chosen.minutes)} minutes a month are expected below the goal of "
        f"{100 * answer.goal_frac:g}%, of {rate(answer.budget_minutes)} allowed, at {rate(chosen.failures)} failures "
        "a month."
    )
    if last.migrate != chosen.migrate:
        text += f" With migrate: {last.migrate} these are {rate(last.minutes)}."
    if best is None:
        return "missed", "No spares hold the error budget", f"{text} {_remedy(chosen)}"
    factor = best.margin or 1.0
    times = f"even at {count(factor)} times" if factor >= MOST_MARGIN else f"up to {rate(factor)} times"
    return "met", f"{_name(best).capitalize()} needed", f"{text} The budget holds {times} these rates of failures."


def _remedy(chosen: SpareOption) -> str:
    if chosen.states[0].is_below:
        return "The pool misses the goal with all its replicas up; simserve capacity has the replicas that it needs."
    if (chosen.transient_minutes or 0.0) > (chosen.state_minutes or 0.0):
        return (
            "Most are right after failures or with a slow replica; detect failures sooner, let the gateway retry "
            "(on_failure), or route by load."
        )
    return "Most are with too few replicas; shorten startup, or allow more by --spare."


def _tiles(answer: ResilienceAnswer, best: SpareOption) -> list[Tile]:
    transients = f"{rate(best.transient_minutes)} min right after failures"
    return [
        Tile("Spares", count(best.spare), [best.kind] if best.spare else []),
        Tile("Minutes below", rate(best.minutes), [f"of {rate(answer.budget_minutes)} a month"]),
        Tile("Attained", share(best.attained_frac), [slo_terms(answer.slo or {})]),
        Tile("With too few replicas", f"{rate(best.state_minutes)} min", [transients]),
    ]


def _options(options: Sequence[SpareOption]) -> Table:
    rows = []
    for each in options:
        minutes = [rate(each.minutes), rate(each.state_minutes), rate(each.transient_minutes)]
        cells = [*minutes, share(each.attained_frac), "holds" if each.holds else "exceeded"]
        other = "" if each.migrate == options[0].migrate else f", migrate: {each.migrate}"
        rows.append(Row(_name(each) + other, [f"{each.usd_per_hour or 0.0:,.2f}", *cells]))
    return Table(OPTIONS, rows, dropped=("of transients", "of states"))


def _states(option: SpareOption) -> Chapter:
    rows, most = [], option.states[0].serving
    for each in option.states:
        r, goal = NONE if each.r is None else ratio_text(each.r), "missed" if each.is_below else "met"
        cells = [count(each.serving), f"{rate(each.time_frac * MONTH_MIN)} min", r, share(each.attained_frac), goal]
        rows.append(Row(f"{most - each.serving} down", cells))
    return Chapter("states", f"States with {_name(option)}", [Table(STATES, rows)], TIME)


def _transients(transients: Sequence[Transient]) -> Table:
    rows = []
    for each in transients:
        requests = [_bounded(figure, rate) for figure in (each.missed, each.lost)]
        times = [_bounded(figure, seconds) for figure in (each.below_s, each.recover_s)]
        note = f"{each.n_lost or 1} of {plural(each.replicas, 'replica')}"
        note += f", {each.warm} warm" if each.warm else ""
        name = each.what if each.speed_frac is None else f"{each.what}, {share(each.speed_frac)}"
        name += "" if each.migrate == transients[0].migrate else f", {each.migrate}"
        rows.append(Row(name, [rate(each.failures), seconds(each.repair_s), *requests, *times], note))
    return Table(TRANSIENTS, rows, dropped=("recovers in", "of them lost"))


def _bounded(interval: Interval, form: Callable[[float | None], str]) -> str:
    """Return a mean with its interval: `23.8 (20.4–27.2)`."""
    if interval.low is None or interval.high is None or interval.low == interval.high:
        return form(interval.value)
    ends = span(interval.low, interval.high) if form is seconds else f"{form(interval.low)}–{form(interval.high)}"
    return f"{form(interval.value)} ({ends})"


def _plot(answer: ResilienceAnswer) -> Plot:
    """Return minutes against cost, a dot an option, and the budget."""
    options, budget = answer.options, answer.budget_minutes or 0.0
    usd = [each.usd_per_hour or 0.0 for each in options]
    dots = scatter(
        "markers",
        numbers(usd),
        numbers([each.minutes or 0.0 for each in options]),
        marker={"size": 10, "color": [COLORS[each.kind] for each in options]},
        **hover([f"{_name(each)}: {rate(each.minutes)} min" for each in options]),
    )
    most, look = max(usd) or 1.0, {"color": "$shade", "dash": "dash", "width": 1.5}
    line = scatter("lines", [-0.05 * most, 1.05 * most], numbers([budget] * 2), hoverinfo="skip", line=look)
    across, up = axis("Dollars an hour for spares"), axis("Minutes a month below the goal", type="log")
    chart = figure([line, dots], 320, xaxis=across, yaxis=up)
    return Plot("cost", chart, "", "Below the line the budget holds.", KEYS)
