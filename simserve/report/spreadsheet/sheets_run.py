"""Sheets of runs: latencies with their goals, what happened when, and by how much the two of a comparison differ."""

from collections.abc import Sequence

from simserve.metrics.answers.comparison import MeasureDifference
from simserve.metrics.result_folder import ResultFolder
from simserve.metrics.timeseries import pool_series
from simserve.report.formats import LATENCIES, SHORT
from simserve.report.run_view import RunView
from simserve.report.spreadsheet.sheets import (
    Cell,
    Chart,
    ChartSeries,
    Form,
    Row,
    Sheet,
    SheetColumn,
    SheetGroup,
    columns_of,
    ms,
)

LEVELS = ("p50", "p90", "p95", "p99", "p99.9")
DRAWN = ("p50", "p90", "p99", "p99.9")

MOST_ROWS = 600
"""Limit of rows of a pool's time series."""

PERCENTILES_NOTE = (
    "Of the requests that arrived in the measured window and were answered. TPOT leaves out the first token; ITL pools "
    "every gap between two tokens; its goal binds the largest gap of a request. The last columns say between which "
    "values the p99 lies: by chance, of a run of this length (95%), and as far as step costs are known (90%)."
)

SERIES_NOTE = (
    "Means over intervals, all replicas of a pool together: queue, running and tokens are sums over replicas, shares "
    "are their means; longest queue and fullest KV are those of the one replica that had most."
)

SERIES = {
    "start_s": SheetColumn("From", "number", "s"),
    "end_s": SheetColumn("To", "number", "s"),
    "queue_len": SheetColumn("Queue", "rate", "requests"),
    "longest_queue": SheetColumn("Longest queue", "rate", "requests"),
    "running": SheetColumn("Running", "rate", "requests"),
    "prefill_tokens_per_s": SheetColumn("Prompt tokens", "rate", "tokens/s"),
    "output_tokens_per_s": SheetColumn("Output tokens", "rate", "tokens/s"),
    "kv_frac": SheetColumn("KV memory", "share", "share"),
    "fullest_kv_frac": SheetColumn("Fullest KV", "share", "share"),
    "busy_frac": SheetColumn("Busy", "share", "share"),
    "mfu": SheetColumn("MFU", "share", "share"),
    "mbu": SheetColumn("MBU", "share", "share"),
}
"""Columns of `pool_series` in their order."""

UNITS: dict[str, tuple[str, Form, float]] = {
    "s": ("ms", "ms", 1e3),
    "frac": ("share", "share", 1.0),
    "per_s": ("/s", "rate", 1.0),
    "count": ("", "rate", 1.0),
}
"""Unit, format and factor by which a measure is shown."""


def percentiles(runs: Sequence[ResultFolder]) -> Sheet:
    """Return a row a latency of each run, and of each of its classes."""
    groups = [SheetGroup(name, [_latency(own, key) for key in LATENCIES]) for run in runs for name, own in _parts(run)]
    charts = tuple(
        Chart(
            f"Latency of {group.title}",
            "bars",
            number,
            "Latency",
            tuple(ChartSeries(level) for level in DRAWN),
            "ms, logarithmic",
            is_log=True,
        )
        for number, group in enumerate(groups[:4])
        if any(value for row in group.rows for value in row[2:8])  # 0 and empty have no logarithm
    )
    return Sheet(
        "Percentiles",
        "Latency percentiles",
        PERCENTILES_NOTE,
        "Run",
        (
            SheetColumn("Latency", "text"),
            SheetColumn("n", "count"),
            SheetColumn("mean", "ms", "ms"),
            *(SheetColumn(level, "ms", "ms") for level in LEVELS),
            SheetColumn("max", "ms", "ms"),
            SheetColumn("SLO", "ms", "ms"),
            SheetColumn("within SLO", "share", "share"),
            *(
                SheetColumn(f"p99 {end}, by {why}", "ms", "ms")
                for why in ("chance", "costs")
                for end in ("low", "high")
            ),
        ),
        tuple(groups),
        charts,
    )


def _parts(run: ResultFolder) -> list[tuple[str, RunView]]:
    """Return the run as a whole, and each class."""
    reader = RunView(run.answer)
    return [(run.label, reader), *((f"{run.label}: {name}", own) for name, own in reader.classes.items())]


def _latency(reader: RunView, key: str) -> Row:
    figures = [ms(reader.number(f"{key}.{name}")) for name in ("mean", *LEVELS, "max")]
    within = reader.met_frac(key) if key in reader.slo else None
    ends = (
        *(getattr(reader.summary, key).intervals.get("p99") or (None, None)),
        *(reader.predicted(key, "p99") or (None, None)),
    )
    return (SHORT[key], reader.number(f"{key}.n"), *figures, ms(reader.slo.get(key)), within, *map(ms, ends))


def time_series(runs: Sequence[ResultFolder]) -> Sheet:
    """Return a row a pool and interval, its replicas together."""
    groups, charts, n_merged = [], [], 1
    for run in runs:
        for pool in (each.name for each in run.answer.pools):
            series, n = pool_series(run.rows or {}, pool, MOST_ROWS)
            rows = [(pool, *values) for values in zip(*(series[name].tolist() for name in SERIES), strict=True)]
            groups.append(SheetGroup(run.label, rows))
            charts += _charts(len(groups) - 1, f"{run.label}, {pool}") if rows else []
            n_merged = max(n_merged, n)
    reduced = f" Evenly reduced: a row is {n_merged} neighboring intervals; timeseries.parquet has all."
    return Sheet(
        "Time series",
        "What happened when",
        SERIES_NOTE + (reduced if n_merged > 1 else ""),
        "Run",
        (SheetColumn("Pool", "text"), *SERIES.values()),
        tuple(groups),
        tuple(charts),
    )


def _charts(group: int, what: str) -> list[Chart]:
    requests = (ChartSeries("Queue"), ChartSeries("Running"))
    tokens = (ChartSeries("Prompt tokens"), ChartSeries("Output tokens"))
    use = (ChartSeries("Busy"), ChartSeries("KV memory"), ChartSeries("MBU"))
    return [
        Chart(f"Requests: {what}", "line", group, "From", requests, "requests"),
        Chart(f"Tokens: {what}", "line", group, "From", tokens, "tokens/s"),
        Chart(f"Use: {what}", "line", group, "From", use, "share", most=1),
    ]


def comparison(studies: Sequence[ResultFolder]) -> Sheet:
    """Return a row a measure of each pair."""
    return Sheet(
        "Comparison",
        "What B does that A does not",
        "B − A with its 95% CI where the runs have one. Better and worse are beyond chance, unclear is statistically "
        "tied.",
        "Pair",
        tuple(columns_of(MeasureDifference).values()),
        tuple(SheetGroup(study.label, [_measure(each) for each in study.answer.measures]) for study in studies),
    )


def _measure(each: MeasureDifference) -> Row:
    unit, form, times = UNITS.get(each.unit, (each.unit, "rate", 1.0))
    figures = (each.a, each.b, each.difference, each.low, each.high)
    scaled = [Cell(None if figure is None else figure * times, form) for figure in figures]
    return (each.label, unit, *scaled, each.change_frac, each.outcome)
