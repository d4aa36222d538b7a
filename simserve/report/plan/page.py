"""Page of a plan: the fleet to take, its cost, the other options, and growth."""

from collections.abc import Iterable, Sequence

from simserve.metrics.answers.fleet_needs import FleetNeed
from simserve.metrics.answers.plan import PlanAnswer
from simserve.metrics.answers.plan_option import PlanOption
from simserve.report.charts import Figure, axis, hover, label, scatter
from simserve.report.charts import figure as chart_of
from simserve.report.document import Cautions, Chapter, Document, Explained, Plot, Table, Tile
from simserve.report.formats import as_sentence, interval, plural, rate, share
from simserve.report.plan.reasons import terms, usd
from simserve.report.plan.words import fleet, grown, option_name, reasons, scaled, supported, table_rows

DROPPED = ("kWh a month", "per M good tokens", "95% CI")
"""Columns that a narrow terminal leaves out first."""

BAR = 34
"""Height of a bar and the gap below it, in pixels."""

ROOM = 1.16
"""Length of the axis as a multiple of the longest bar, for its label."""

FAILOVER = " throughout; the moment of failover is not simulated"

FIXED = (
    "Only GPU-hours are priced: no network, storage, staff or other fees of a provider.",
    "Check prices (--price) and the scenario's load before you buy.",
)
"""Warnings of every plan."""


def tell(answer: PlanAnswer) -> Document:
    """Return all that a plan tells."""
    best, assumed = answer.best, answer.assumed
    setup = f"{plural(len(answer.options), 'option')} compared with the same requests."
    if best is not None:
        spare = plural(assumed.spare_replicas, "spare replica")
        setup += f" A month is {rate(assumed.hours_per_month)} hours; {spare} of each kind are in it."
    table = Table.of(table_rows(answer), dropped=DROPPED)
    own = [(option_name(row), row.reason) for row in answer.options]
    why = "\n".join(f"  {sentence}" for sentence in reasons(answer))
    return Document(
        command="plan",
        name=answer.scenario.name,
        state="missed" if best is None else best.decision or "edge",
        title="No option surely meets the SLO"
        if best is None
        else f"Take {best.gpus} × {best.gpu}: {usd(best.usd_per_month)} a month",
        lead=answer.sentence if best is None else supported(answer, best),
        kept=[f"{rate(answer.demand.sized_for_per_s)} req/s", *([] if best is None else [fleet(best)])],
        setup=(setup,),
        tiles=() if best is None else _tiles(best),
        parts=(
            _options(answer, table),
            Chapter("reasons", "Why this option", [_explained(own)]),
            *_later(answer),
            Chapter("assumed", "Assumed", [_explained(_assumed(answer))]),
            Cautions([*map(as_sentence, answer.warnings), *FIXED]),
        ),
        made={
            "simserve": answer.version,
            "scenario": answer.scenario.digest,
            "seeds": f"{answer.scenario.seed} and on, {assumed.n_seeds} each",
        },
        brief=(answer.sentence, grown(answer), scaled(answer), table, why),
        warnings=answer.warnings,
    )


def _tiles(best: PlanOption) -> tuple[Tile, ...]:
    ends = interval(best.attained_low_frac, best.attained_high_frac)
    per = [f"{usd(best.usd_per_m_output_tokens)} good or not", f"{usd(best.usd_per_m_tokens)} with prompts"]
    return (
        Tile("Fleet", plural(best.gpus, "GPU"), [fleet(best)]),
        Tile("Cost a month", usd(best.usd_per_month), [f"{usd(best.usd_per_hour)} an hour"]),
        Tile("Per M good tokens", usd(best.usd_per_m_good_tokens), per),
        Tile("SLO attainment", share(best.attained_frac), [f"95% CI {ends}", f"{best.n_seeds} seeds"]),
        Tile("kWh a month", rate(best.kwh_per_month), [f"at most {rate(best.kwh_per_month_at_tdp)}"]),
        Tile("Busy", share(best.busy_frac), ["of the time, with a step in progress"]),
    )


def _options(answer: PlanAnswer, table: Table) -> Chapter:
    held = answer.held
    n_missed = len(answer.options) - len(held)
    left_out = f" Not drawn, as not sure to meet it: {plural(n_missed, 'option')}." if n_missed else ""
    note = f"Options that meet the SLO. Whiskers reach to the smallest statistically tied fleet.{left_out}"
    none = "No option surely meets the SLO."
    chart = Plot("costs", _costs(held) if held else None, "Cost a month", note, otherwise=none)
    marked = any(row.calibrated is False for row in answer.options)
    sentence = "Best first." + (" *: step costs are uncalibrated." if marked else "")
    return Chapter("options", "Options", [chart, table], sentence)


def _explained(pairs: Iterable[tuple[str, str]]) -> Explained:
    """Return names with their sentences."""
    return Explained([(name, value[:1].upper() + value[1:]) for name, value in pairs])


def _later(answer: PlanAnswer) -> list[Chapter]:
    """Return the growth of the fleet by month and its needs by hour."""
    charts = []
    if (growth := answer.growth) is not None:
        texts = [f"month {row.month}: {_need(row)} for {rate(row.offered_per_s)} requests/s" for row in growth.rows]
        figure = _stair([row.month for row in growth.rows], growth.rows, texts, "Months from now")
        charts.append(Plot("months", figure, "GPUs by month", grown(answer)))
    if (by_hour := answer.autoscaling) is not None:
        texts = [f"hour {row.hour}: {_need(row)} for up to {rate(row.peak_per_s)} requests/s" for row in by_hour.rows]
        figure = _stair([row.hour for row in by_hour.rows], by_hour.rows, texts, "Hour")
        charts.append(Plot("hours", figure, "GPUs by hour, at best", scaled(answer)))
    return [Chapter("later", "As demand changes", charts)] if charts else []


def _assumed(answer: PlanAnswer) -> list[tuple[str, str]]:
    """Return the assumptions."""
    assumed, demand = answer.assumed, answer.demand
    prices = ", ".join(f"{gpu} {usd(price)}" for gpu, price in assumed.usd_per_gpu_hour.items())
    given = f"; given: {', '.join(assumed.given_prices)}" if assumed.given_prices else ", the catalog's"
    spare = f"the goal holds with {plural(assumed.spare_replicas, 'replica')} of each kind down{FAILOVER}"
    return [
        ("Demand", f"{rate(demand.sized_for_per_s)} requests/s sized for, {rate(demand.mean_per_s)} on average"),
        ("Goal", f"{share(answer.goal_frac)} of requests meet every SLO"),
        ("SLO", terms(answer)),
        ("Failures", spare if assumed.n_failure_runs is None else "what simserve resilience says of this fleet"),
        ("Prices", f"dollars per GPU-hour: {prices}{given}"),
        ("Energy", assumed.energy),
        ("Largest fleet", plural(assumed.max_gpus, "GPU")),
    ]


def _costs(held: Sequence[PlanOption]) -> Figure:
    """Return a bar for each option that meets the SLO, the cheapest on top, named above it, where a phone has room."""
    costs = [f"{usd(row.usd_per_month)}, {plural(row.gpus, 'GPU')}" for row in held]
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": list(range(len(held))),
        "x": [row.usd_per_month for row in held],
        "marker": {"color": ["$c1" if row.rank == 1 else "$shade" for row in held]},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [_gap(row.usd_per_month_high, row.usd_per_month) for row in held],
            "arrayminus": [_gap(row.usd_per_month, row.usd_per_month_low) for row in held],
            "color": "$ink",
            "thickness": 1.5,
            "width": 5,
        },
        "text": costs,
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
        "width": 0.56,
    }
    labels = [
        label(f"<b>{option_name(row)}</b>  {cost}", 0, place - 0.3, xanchor="left", yanchor="bottom")
        for place, (row, cost) in enumerate(zip(held, costs, strict=True))
    ]
    most = max(row.usd_per_month_high or 0.0 for row in held)
    y_axis = axis(range=[len(held) - 0.4, -0.9], showticklabels=False, showgrid=False)
    x_axis = axis(range=[0, most * ROOM], tickprefix="$", tickformat=",.0f", nticks=5)
    margin = {"l": 14, "r": 14, "t": 6, "b": 34}
    return chart_of([bars], 56 + (BAR + 20) * len(held), xaxis=x_axis, yaxis=y_axis, annotations=labels, margin=margin)


def _gap(more: float | None, less: float | None) -> float | None:
    """Return the length of a whisker; None without one."""
    return (more or 0.0) - (less or 0.0) or None


def _need(row: FleetNeed) -> str:
    return "more GPUs than --max-gpus allows" if row.gpus is None else plural(row.gpus, "GPU")


def _stair(x: list[int], rows: Sequence[FleetNeed], texts: list[str], title: str) -> Figure:
    """Return the GPUs of each month or hour as steps."""
    look = {"line": {"color": "$c1", "width": 2.5, "shape": "hv"}, "marker": {"color": "$c1", "size": 6}}
    line = scatter("lines+markers", x, [row.gpus for row in rows], **hover(texts), **look)
    most = max((row.gpus for row in rows if row.gpus is not None), default=1)
    y_axis = axis("GPUs", range=[0, most * 1.15], tickformat=",d", nticks=min(6, most + 1))
    x_axis = axis(title, range=[x[0] - 0.3, x[-1] + 0.3], tickformat=",d", nticks=13)
    return chart_of([line], 280, xaxis=x_axis, yaxis=y_axis, margin={"l": 56, "r": 14, "t": 14, "b": 50})
