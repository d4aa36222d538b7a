"""The page of a resilience study: what failures cost, and the spares that the pool needs."""

from collections.abc import Callable, Sequence

from simserve.metrics.answers.parts import Interval
from simserve.metrics.answers.resilience import FleetState, ResilienceAnswer, SpareOption, Transient
from simserve.report.charts import axis, figure, hover, numbers, scatter
from simserve.report.document import Chapter, Document, Explained, Plot, Row, Table, Tile
from simserve.report.formats import NONE, count, plural, rate, seconds, share, slo_terms, span
from simserve.report.headline import ratio_text
from simserve.report.margin import margin

OPTIONS = ("spares", "USD/h", "min below", "of states", "of transients", "attained", "budget")
STATES = ("replicas", "serving", "of a month", "latency/limit", "attained", "goal")
TRANSIENTS = ("failure", "a month", "repair", "missed", "of them lost", "below the goal", "recovers in")

TIME = "By the rates of failures and the time of repairs; latency/limit is r, the quantile at the goal."
COST = "Against the same seeds without it; 95% intervals over seeds, each with the failure at another instant."
COLORS = {"warm": "$c3", "cold": "$c2"}
MONTH_MIN = 43_200
MOST_MARGIN = 1000


def tell(answer: ResilienceAnswer) -> Document:
    """Return all that the study tells."""
    best = None if answer.best is None else answer.options[answer.best]
    title, lead = _title(answer, best), _lead(answer, best)
    transients = _transients(answer.transients)
    spares = [] if not answer.options else [_options(answer.options)]
    return Document(
        command="resilience",
        name=answer.scenario.name,
        state="nothing" if answer.is_scaled else "missed" if best is None else "met",
        title=title,
        lead=lead,
        kept=[] if best is None else [f"{best.usd_per_hour or 0.0:,.2f} USD/h of spares"],
        setup=(f"Pool {answer.pool} of {plural(answer.replicas, 'replica')}, {plural(answer.n_runs, 'run')}.",),
        tiles=[] if best is None else _tiles(answer, best),
        parts=(
            *(_of_spares(answer, best or answer.options[-1]) if answer.options else ()),
            Chapter("transients", "One failure of each kind", [transients], COST),
            *margin({"": answer.decision}),
            Chapter("assumed", "Assumptions", [Explained(_assumed(answer), is_wide=True)]),
        ),
        made={"simserve": answer.version, "scenario": answer.scenario.digest},
        brief=(f"{title}: {lead}", *spares, transients, f"{plural(answer.n_runs, 'run')}."),
        warnings=answer.warnings,
    )


def _of_spares(answer: ResilienceAnswer, chosen: SpareOption) -> list[Chapter]:
    return [
        Chapter("cost", "Minutes against cost", [_plot(answer)]),
        Chapter(
            "spares", "Spares", [_options(answer.options)], "Expected minutes of a month of 30 days below the goal."
        ),
        Chapter("states", f"States with {_name(chosen)}", [_states(chosen.states)], TIME),
    ]


def _name(option: SpareOption) -> str:
    return plural(option.spare, f"{option.kind} spare") if option.spare else "no spares"


def _title(answer: ResilienceAnswer, best: SpareOption | None) -> str:
    if answer.is_scaled:
        return "Transients alone"
    if best is None:
        return "No spares hold the error budget"
    return f"{_name(best).capitalize()} needed"


def _lead(answer: ResilienceAnswer, best: SpareOption | None) -> str:
    """Return the minutes of the option to take, or of the best of the others, and what to do."""
    if answer.is_scaled:
        return (
            f"The autoscaler of pool {answer.pool} decides how many replicas there are, so spares are not compared. "
            "The table has what one failure of each kind costs."
        )
    chosen = best or min(answer.options, key=lambda each: each.minutes or 0.0)
    text = (
        f"With {_name(chosen)} {rate(chosen.minutes)} minutes a month are expected below the goal of "
        f"{_goal(answer)}, of {rate(answer.budget_minutes)} allowed, at {rate(chosen.failures)} failures a month."
    )
    return f"{text} {_remedy(answer, chosen) if best is None else _often(best)}"


def _goal(answer: ResilienceAnswer) -> str:
    return f"{100 * answer.goal_frac:g}%"


def _often(best: SpareOption) -> str:
    factor = best.margin or 1.0
    times = f"even at {count(factor)} times" if factor >= MOST_MARGIN else f"up to {rate(factor)} times"
    return f"The budget holds {times} these rates of failures."


def _remedy(answer: ResilienceAnswer, chosen: SpareOption) -> str:
    if chosen.states[0].is_below:
        return "The pool misses the goal with all its replicas up; simserve capacity has the replicas that it needs."
    if (chosen.transient_minutes or 0.0) > (chosen.state_minutes or 0.0):
        return "Most are right after failures; detect these sooner, or let the gateway retry (on_failure)."
    return "Most are with too few replicas; shorten startup, or allow more by --spare."


def _tiles(answer: ResilienceAnswer, best: SpareOption) -> list[Tile]:
    states, transients = rate(best.state_minutes), rate(best.transient_minutes)
    return [
        Tile("Spares", count(best.spare), [best.kind] if best.spare else []),
        Tile("Minutes below", rate(best.minutes), [f"of {rate(answer.budget_minutes)} a month"]),
        Tile("Attained", share(best.attained_frac), [slo_terms(answer.slo or {})]),
        Tile("With too few replicas", f"{states} min", [f"{transients} min right after failures"]),
    ]


def _options(options: Sequence[SpareOption]) -> Table:
    rows = [
        Row(
            _name(each),
            (
                f"{each.usd_per_hour or 0.0:,.2f}",
                rate(each.minutes),
                rate(each.state_minutes),
                rate(each.transient_minutes),
                share(each.attained_frac),
                "holds" if each.holds else "exceeded",
            ),
        )
        for each in options
    ]
    return Table(OPTIONS, rows, dropped=("of transients", "of states"))


def _states(states: Sequence[FleetState]) -> Table:
    most = states[0].serving or 0
    rows = [
        Row(
            f"{most - (each.serving or 0)} down",
            (
                count(each.serving),
                _minutes(each.time_frac),
                NONE if each.r is None else ratio_text(each.r),
                share(each.attained_frac),
                "missed" if each.is_below else "met",
            ),
        )
        for each in states
    ]
    return Table(STATES, rows)


def _minutes(time_frac: float | None) -> str:
    return f"{rate((time_frac or 0.0) * MONTH_MIN)} min"


def _transients(transients: Sequence[Transient]) -> Table:
    rows = [
        Row(
            each.what or "",
            (
                rate(each.failures),
                seconds(each.repair_s),
                _bounded(each.missed, rate),
                _bounded(each.lost, rate),
                _bounded(each.below_s, seconds),
                _bounded(each.recover_s, seconds),
            ),
            f"{each.n_lost} of {plural(each.replicas, 'replica')}" + (f", {each.warm} warm" if each.warm else ""),
        )
        for each in transients
    ]
    return Table(TRANSIENTS, rows, dropped=("recovers in", "of them lost"))


def _bounded(interval: Interval, form: Callable[[float | None], str]) -> str:
    """Return a mean with its interval: `23.8 (20.4–27.2)`."""
    if interval.low is None or interval.high is None or interval.low == interval.high:
        return form(interval.value)
    ends = span(interval.low, interval.high) if form is seconds else f"{form(interval.low)}–{form(interval.high)}"
    return f"{form(interval.value)} ({ends})"


def _assumed(answer: ResilienceAnswer) -> list[tuple[str, str]]:
    first = {each.what: each for each in reversed(answer.transients)}
    rates = [
        (f"A {what} fails", f"once in {rate((each.mtbf_s or 0.0) / 86_400)} days; {each.source}.")
        for what, each in reversed(first.items())
    ]
    return [
        *rates,
        (
            "A repair takes",
            "the time until it is known and a typical start, with a new machine unless a process failed.",
        ),
        ("Active spares", "serve as all others do."),
        ("Warm spares", "are loaded, and take over once a failure is known."),
        ("Cold spares", "hold GPUs and start once a failure is known; they wait for no machine."),
        ("A transient", "is that of the fewest replicas it was run with, at most; more of them feel it less."),
        ("Failures", "are independent, but for replicas of one node or rack."),
    ]


def _plot(answer: ResilienceAnswer) -> Plot:
    """Return minutes against cost, a dot an option, and the budget."""
    options = answer.options
    usd = numbers([each.usd_per_hour or 0.0 for each in options])
    dots = scatter(
        "markers",
        usd,
        numbers([each.minutes or 0.0 for each in options]),
        marker={"size": 10, "color": [COLORS.get(each.kind, "$c1") for each in options]},
        **hover([f"{_name(each)}: {rate(each.minutes)} min" for each in options]),
    )
    most = max(each.usd_per_hour or 0.0 for each in options) or 1.0
    budget = [answer.budget_minutes, answer.budget_minutes]
    line = scatter("lines", [-0.05 * most, 1.05 * most], numbers([each or 0.0 for each in budget]), hoverinfo="skip")
    line |= {"line": {"color": "$shade", "dash": "dash", "width": 1.5}}
    axes = {
        "xaxis": axis("Dollars an hour for spares"),
        "yaxis": axis("Minutes a month below the goal", type="log"),
    }
    keys = [("dot k1", "active"), ("dot k3", "warm"), ("dot k2", "cold"), ("dash k5", "budget")]
    return Plot("cost", figure([line, dots], 320, **axes), "", "Below the line the budget holds.", keys)
