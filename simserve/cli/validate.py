"""`simserve validate`: compare predictions with measurements of real servers; logs are in `validate_log.py`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli.calibrate import campaign_named
from simserve.cli.run import AllowPlugin, AsJson
from simserve.cli.validate_log import validate_log

if TYPE_CHECKING:
    from simserve.lab.serving import Campaign, ServingPoint, ServingRow
    from simserve.lab.validate import Validation

WORST = 5
CAMPAIGN = "aiconfigurator"

KEYS: "dict[str, Callable[[ServingRow], str]]" = {
    "engine": lambda row: row.engine,
    "engine, model": lambda row: f"{row.engine} {row.model} {row.weight_dtype}",
    "engine, TP": lambda row: f"{row.engine} TP {row.tp}",
    "engine, load": lambda row: f"{row.engine} {row.concurrency:3d} in flight",
}

Rows = Annotated[
    Path | None,
    typer.Argument(metavar="ROWS", help="CSV of serving runs; with --scenario, a log (docs/validation.md)."),
]
LogScenario = Annotated[
    Path | None,
    typer.Option("--scenario", metavar="SCENARIO", help="Server that the log in ROWS was recorded on."),
]
# Runs, not logs.
CampaignName = Annotated[
    str | None,
    typer.Option("--campaign", help=f"Benchmark setup of the runs: {CAMPAIGN} (default), inferencemax or plain."),
]
RequestsPerClient = Annotated[
    int | None, typer.Option("--requests-per-client", min=1, help="Measured requests per client.")
]
ShortestFrac = Annotated[
    float | None,
    typer.Option("--shortest-frac", min=0.01, max=1.0, help="Shortest length as a share of isl and osl."),
]
OneEngine = Annotated[str | None, typer.Option("--engine", help="Use only the runs of this engine.")]
LeaveOut = Annotated[
    bool, typer.Option("--leave-out", help="Also predict each (model, TP) group from the others; takes minutes.")
]
# Both.
Page = Annotated[
    Path | None, typer.Option("--page", metavar="HTML", help="Write a page of predicted against measured values.")
]


def validate(
    rows: Rows = None,
    scenario: LogScenario = None,
    campaign: CampaignName = None,
    requests_per_client: RequestsPerClient = None,
    shortest_frac: ShortestFrac = None,
    engine: OneEngine = None,
    leave_out: LeaveOut = False,
    page: Page = None,
    allow_plugin: AllowPlugin = None,
    as_json: AsJson = False,
) -> None:
    """Compare predictions with measured serving runs or request logs."""
    from simserve.allowed_modules import allow_modules
    from simserve.lab.settings import is_table_of_settings

    of_runs: dict[str, object] = {"--campaign": campaign, "--engine": engine, "--leave-out": leave_out}
    of_runs |= {"--requests-per-client": requests_per_client, "--shortest-frac": shortest_frac}
    if scenario is not None:
        allow_modules(allow_plugin or (), scenario.parent, are_trusted=False)
        others = [option for option, value in of_runs.items() if value]
        if others:
            rule = f"does not take {', '.join(others)}; leave them out"
            raise typer.BadParameter(rule, param_hint="--scenario")
        if rows is None:
            raise typer.BadParameter("give a log of requests, or a result of vllm bench serve", param_hint="ROWS")
        validate_log(rows, scenario, page, as_json=as_json)
        return
    if rows is None:
        raise typer.BadParameter("give a CSV of serving runs", param_hint="ROWS")
    if is_table_of_settings(rows):
        known = {"--campaign": campaign, "--leave-out": leave_out, "--page": page, "--shortest-frac": shortest_frac}
        for option in (option for option, value in known.items() if value):
            raise typer.BadParameter("is not for a table of InferenceX's settings; leave it out", param_hint=option)
        _validate_settings(rows, engine, requests_per_client, as_json=as_json)
        return
    given = {"requests_per_client": requests_per_client, "shortest_frac": shortest_frac}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    chosen = replace(campaign_named(campaign or CAMPAIGN), **changes)
    _validate_runs(_chosen(rows, engine), chosen, page, leave_out=leave_out, as_json=as_json)


def _validate_settings(rows: Path, engine: str | None, requests_per_client: int | None, *, as_json: bool) -> None:
    """Print the errors of InferenceX's settings, by side."""
    from dataclasses import asdict

    from simserve.cli import terminal
    from simserve.lab.serving import CAMPAIGNS
    from simserve.lab.settings import METRICS, errors_by_group, read_settings, replay_settings
    from simserve.lab.validate import errors_of
    from simserve.report.formats import plural

    settings, left_out = read_settings(rows)
    settings = [setting for setting in settings if engine is None or setting.engine == engine]
    if not settings:
        raise typer.BadParameter(f"no run of {engine!r} in {rows}", param_hint="--engine")
    n_requests = requests_per_client or CAMPAIGNS["inferencemax"].requests_per_client
    points = replay_settings(settings, n_requests, terminal.message)
    if as_json:
        terminal.result_json(
            {"n_left_out": sum(left_out.values()), "left_out": left_out, "points": [asdict(point) for point in points]}
        )
        return
    table: list[Sequence[str]] = [("setting", "metric", "runs", "mean error", "median", "p90", "bias")]
    for metric, title in METRICS.items():
        for name, signed in errors_by_group(points, metric).items():
            error = errors_of(signed)
            numbers = [f"{number:.1%}" for number in (error.mape_frac, error.median_frac, error.p90_frac)]
            table.append((name, title, f"{error.n}", *numbers, f"{error.bias_frac:+.1%}"))
    assumed = (
        f"{n_requests} requests per client, all clients start at once; lengths 0.8 to 1 of isl and osl; no prefix "
        "cache; the engine's own budget and slots"
    )
    terminal.result(f"Assumptions about clients and servers: {assumed}\n\n{terminal.table(table)}")
    refused = [point for point in points if point.predicted_s is None]
    terminal.warnings(f"refused: {point.setting.label}: {point.reason}" for point in refused)
    terminal.warnings(f"{plural(n, 'setting')} left out: {reason}" for reason, n in left_out.items())


def _chosen(rows: Path, engine: str | None) -> "list[ServingRow]":
    """Return the runs of a table, or those of one engine."""
    from simserve.lab.serving import read_rows

    chosen = [row for row in read_rows(rows) if engine is None or row.engine == engine]
    if not chosen:
        raise typer.BadParameter(f"no run of {engine!r} in {rows}", param_hint="--engine")
    return chosen


def _validate_runs(
    rows: "Sequence[ServingRow]", campaign: "Campaign", page: Path | None, *, leave_out: bool, as_json: bool
) -> None:
    """Print the errors of the means of closed-loop runs."""
    from simserve.cli import terminal
    from simserve.lab.validate import validate as replay_all

    validation = replay_all(rows, campaign, leave_out=leave_out, progress=terminal.message)
    if page is not None:
        from simserve.lab.pages.validation import render
        from simserve.tables.files import replace_text

        replace_text(page, render(_plain(validation)))
        terminal.message(f"wrote {page}")
    if as_json:
        terminal.result_json(_plain(validation))
        return
    terminal.result(_report(validation))


def _report(validation: "Validation") -> str:
    """Format the assumptions, tables of errors, and the worst points."""
    campaign = validation.campaign
    budgets = [f"{budget} ({engine})" for engine, budget in sorted(campaign.budgets.items())]
    budget = "; ".join([*budgets, "else the engine's default" if budgets else "the engine's default"])
    parts = [
        f"Assumptions about clients and servers ({campaign.source}):",
        f"  {campaign.requests_per_client} requests per client, all clients start at once; lengths "
        f"{campaign.shortest_frac:g} to 1 of isl and osl; tokens per step: {budget}",
        *_cold_starts(campaign, validation.points),
        "",
        "In-sample: the shipped constants" if validation.left_out else "The shipped constants",
        *_tables(validation.points),
    ]
    if validation.left_out:
        title = "Held-out: each (model, TP) group predicted from a fit to the others"
        parts += ["", title, *_tables(validation.left_out)]
    return "\n".join([*parts, "", *_worst(validation.left_out or validation.points)])


def _cold_starts(campaign: "Campaign", points: "Sequence[ServingPoint]") -> list[str]:
    """Say what cold starts add to mean TTFT."""
    models = dict.fromkeys((point.row.engine, point.row.model) for point in points)
    shares = [(f"{engine} {model}", campaign.cold_share_s(engine, model)) for engine, model in models]
    texts = [f"{1e3 * share_s:g} ms ({server})" for server, share_s in shares if share_s]
    return [f"  cold starts add to mean TTFT: {', '.join(texts)}"] if texts else []


def _tables(points: "Sequence[ServingPoint]") -> list[str]:
    from simserve.cli import terminal
    from simserve.lab.validate import by, errors

    lines = []
    for title, key in KEYS.items():
        table: list[Sequence[str]] = [(title, "metric", "runs", "mean error", "90% CI", "median", "p90", "bias")]
        for name, group in by(points, key).items():
            for metric in ("tpot", "ttft"):
                error = errors(group, metric)
                interval = "" if error.interval is None else f"{error.interval[0]:.1%} to {error.interval[1]:.1%}"
                numbers = (error.median_frac, error.p90_frac)
                table.append(
                    (
                        name,
                        metric.upper(),
                        f"{error.n}",
                        f"{error.mape_frac:.1%}",
                        interval,
                        *(f"{number:.1%}" for number in numbers),
                        f"{error.bias_frac:+.1%}",
                    )
                )
        lines += [terminal.table(table), ""]
    return lines[:-1]


def _worst(points: "Sequence[ServingPoint]") -> list[str]:
    from simserve.cli import terminal
    from simserve.lab.validate import METRICS, worst

    lines = []
    for metric in ("tpot", "ttft"):
        table: list[Sequence[str]] = [(f"Worst {metric.upper()}", "measured", "predicted", "ratio")]
        for point in worst(points, metric, WORST):
            row = point.row
            measured_s, predicted_s = getattr(row, f"{metric}_s"), getattr(point, f"{metric}_s")
            ratio = METRICS[metric](point)
            table.append((row.label, f"{measured_s * 1e3:,.1f} ms", f"{predicted_s * 1e3:,.1f} ms", f"{ratio:.2f}"))
        lines += [terminal.table(table), ""]
    return lines[:-1]


def _plain(validation: "Validation") -> dict[str, Any]:
    """Return the answer of --json."""
    from dataclasses import asdict

    def plain(points: "Sequence[ServingPoint]") -> list[dict[str, Any]]:
        return [
            {
                **asdict(point.row),
                "predicted_ttft_s": point.ttft_s,
                "predicted_tpot_s": point.tpot_s,
                "is_limited_by_memory": point.is_limited_by_memory,
            }
            for point in points
        ]

    campaign = {key: value for key, value in asdict(validation.campaign).items() if not isinstance(value, frozenset)}
    return {"campaign": campaign, "points": plain(validation.points), "left_out": plain(validation.left_out)}
