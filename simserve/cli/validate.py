"""`simserve validate`: compare predictions with measurements of real servers."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli import terminal
from simserve.cli.calibrate import CAMPAIGN, campaign_named
from simserve.cli.options import AllowPlugin, AsJson, Columns, Opens, Quiet

if TYPE_CHECKING:
    from simserve.lab.campaigns import Campaign
    from simserve.lab.runs import MeasuredRun, Prediction
    from simserve.report.document import Table

SIDES = {"ttft": "prefill: TTFT", "median_ttft": "prefill: median TTFT", "tpot": "decode: TPOT", "e2e": "both: E2E"}
"""Latencies of settings, by the side that they depend on most. A closed loop serves concurrency / E2E requests per
second, so throughput per GPU is wrong by as much as E2E."""

Rows = Annotated[Path | None, typer.Argument(help="CSV of serving runs; with --scenario, a log (docs/validation.md).")]
LogScenario = Annotated[
    Path | None, typer.Option("--scenario", metavar="SCENARIO", help="Server that the log in ROWS was recorded on.")
]
# Runs, not logs.
CampaignName = Annotated[
    str | None,
    typer.Option("--campaign", help=f"Benchmark setup of the runs: {CAMPAIGN} (default), inferencemax or plain."),
]
PerClient = Annotated[int | None, typer.Option("--requests-per-client", min=1, help="Measured requests per client.")]
ShortestFrac = Annotated[
    float | None, typer.Option("--shortest-frac", min=0.01, max=1.0, help="Shortest length as a share of isl and osl.")
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
    requests_per_client: PerClient = None,
    shortest_frac: ShortestFrac = None,
    engine: OneEngine = None,
    leave_out: LeaveOut = False,
    page: Page = None,
    columns: Columns = None,
    allow_plugin: AllowPlugin = None,
    quiet: Quiet = False,
    opens: Opens = False,
    as_json: AsJson = False,
) -> None:
    """Compare predictions with measured serving runs or request logs."""
    from simserve.allowed_modules import allow_modules
    from simserve.lab.campaigns import run_of
    from simserve.lab.run_tables import read_rows
    from simserve.lab.settings_table import is_table_of_settings

    of_runs: dict[str, object] = {"--campaign": campaign, "--engine": engine, "--leave-out": leave_out}
    of_runs |= {"--requests-per-client": requests_per_client, "--shortest-frac": shortest_frac}
    if scenario is not None:
        allow_modules(allow_plugin or (), scenario.parent, are_trusted=False)
        others = [option for option, value in of_runs.items() if value]
        if others:
            raise typer.BadParameter(f"does not take {', '.join(others)}; leave them out", param_hint="--scenario")
        if rows is None:
            raise typer.BadParameter("give a log of requests, or a result of vllm bench serve", param_hint="ROWS")
        _validate_log(rows, scenario, page, columns, as_json=as_json)
        return
    if rows is None:
        raise typer.BadParameter("give a CSV of serving runs", param_hint="ROWS")
    if columns is not None:
        raise typer.BadParameter("is for a log, with --scenario; leave it out", param_hint="--map")
    if is_table_of_settings(rows):
        known = {"--campaign": campaign, "--leave-out": leave_out, "--page": page, "--shortest-frac": shortest_frac}
        for option in (option for option, value in known.items() if value):
            raise typer.BadParameter("is not for a table of InferenceX's settings; leave it out", param_hint=option)
        _validate_settings(rows, engine, requests_per_client, as_json=as_json)
        return
    given = {"requests_per_client": requests_per_client, "shortest_frac": shortest_frac}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    chosen = replace(campaign_named(campaign or CAMPAIGN), **changes)
    runs = _of_engine([run_of(row, chosen) for row in read_rows(rows)], engine, rows)
    _validate_runs(runs, chosen, rows, page, leave_out=leave_out, as_json=as_json)


def _validate_settings(rows: Path, engine: str | None, requests_per_client: int | None, *, as_json: bool) -> None:
    """Print the errors of InferenceX's settings, by side."""
    from simserve.lab.inferencex import CAMPAIGN as THEIRS
    from simserve.lab.inferencex import run_of_setting
    from simserve.lab.runs import predict
    from simserve.lab.settings_table import no_versions, read_settings
    from simserve.lab.trust import trust_in_runs
    from simserve.report.formats import plural

    settings, left_out = read_settings(rows)
    n_requests = requests_per_client or THEIRS.requests_per_client
    runs = _of_engine([run_of_setting(each, n_requests) for each in settings], engine, rows)
    points = []
    for i, run in enumerate(runs, 1):
        terminal.message(f"{i} of {len(runs)}: {run.label}")
        points.append(predict(run))
    trust = trust_in_runs(points)
    if as_json:
        plain = [{"setting": each.run.read, "predicted_s": each.predicted_s, "reason": each.reason} for each in points]
        terminal.result_json(
            {"decision": trust.facts(), "n_left_out": sum(left_out.values()), "left_out": left_out, "points": plain}
        )
        return
    assumed = (
        f"{n_requests} requests per client, all clients start at once; lengths {THEIRS.shortest_frac:g} to 1 of isl "
        f"and osl; no prefix cache; the engine's own budget and slots{no_versions(rows, settings)}"
    )
    decision = f"{trust.title}: {trust.sentence}"
    table = terminal.table(_by_side(points))
    terminal.result(f"{decision}\n\nAssumptions about clients and servers: {assumed}\n\n{table}")
    terminal.warnings(f"refused: {each.run.label}: {each.reason}" for each in points if each.predicted_s is None)
    terminal.warnings(f"{plural(n, 'setting')} left out: {reason}" for reason, n in left_out.items())


def _by_side(points: "Sequence[Prediction]") -> list[Sequence[str]]:
    """Return a row for each kind of server and latency."""
    import numpy as np

    from simserve.lab.runs import by, errors_of

    def kind(run: "MeasuredRun") -> str:
        return f"{run.gpu} {run.engine} {run.model} {run.weight_dtype} {run.kind}"

    table: list[Sequence[str]] = [("setting", "metric", "runs", "mean error", "median", "p90", "bias")]
    for metric, title in SIDES.items():
        for name, group in by(points, kind).items():
            error = errors_of(np.array([each.ratio(metric) - 1 for each in group]))
            numbers = [f"{number:.1%}" for number in (error.mape_frac, error.median_frac, error.p90_frac)]
            table.append((name, title, f"{error.n}", *numbers, f"{error.bias_frac:+.1%}"))
    return table


def _of_engine(runs: "Sequence[MeasuredRun]", engine: str | None, rows: Path) -> "list[MeasuredRun]":
    """Return the runs of a table, or those of one engine."""
    chosen = [run for run in runs if engine is None or run.engine == engine]
    if not chosen:
        raise typer.BadParameter(f"no run of {engine!r} in {rows}", param_hint="--engine")
    return chosen


def _validate_runs(
    runs: "list[MeasuredRun]", campaign: "Campaign", rows: Path, page: Path | None, *, leave_out: bool, as_json: bool
) -> None:
    """Print the decision and the errors of the means of closed-loop runs."""
    from simserve.lab.host_fit import left_out
    from simserve.lab.runs import replay
    from simserve.lab.trust import trust_in_runs
    from simserve.lab.validation_page import tell

    points = replay(runs)
    held_out = left_out(runs, terminal.message) if leave_out else []
    trust, facts = trust_in_runs(held_out or points, str(rows)), _plain(campaign, points, held_out)
    document = tell(facts, trust)
    if page is not None:
        from simserve.report.html import page as html
        from simserve.tables.files import replace_text

        replace_text(page, html(document))
        terminal.message(f"wrote {page}")
    document = replace(document, brief=(*document.brief, *_report(campaign, points, held_out)))
    terminal.answer(document, {"decision": trust.facts(), **facts}, as_json=as_json)


def _report(campaign: "Campaign", points: "list[Prediction]", held_out: "list[Prediction]") -> "Iterator[str | Table]":
    """Format the assumptions, tables of errors, and the worst points."""
    from simserve.lab.validation_page import error_tables, worst_tables

    budgets = [f"{budget} ({engine})" for engine, budget in sorted(campaign.budgets.items())]
    budget = "; ".join([*budgets, "else the engine's default" if budgets else "the engine's default"])
    shares = {f"{each.run.engine} {each.run.model}": each.run.cold_s for each in points}
    cold = [f"{1e3 * share_s:g} ms ({server})" for server, share_s in shares.items() if share_s]
    assumed = (
        f"Assumptions about clients and servers ({campaign.source}):",
        f"  {campaign.requests_per_client} requests per client, all clients start at once; lengths "
        f"{campaign.shortest_frac:g} to 1 of isl and osl; tokens per step: {budget}",
        *([f"  cold starts add to mean TTFT: {', '.join(cold)}"] if cold else []),
    )
    yield "\n".join(assumed)
    yield "In-sample: the shipped constants" if held_out else "The shipped constants"
    yield from error_tables(points)
    if held_out:
        yield "Held-out: each (model, TP) group predicted from a fit to the others"
        yield from error_tables(held_out)
    yield from worst_tables(held_out or points)


def _plain(campaign: "Campaign", points: "Sequence[Prediction]", held_out: "Sequence[Prediction]") -> dict[str, Any]:
    """Return the answer of --json, which the page shows."""
    from dataclasses import asdict

    def plain(point: "Prediction") -> dict[str, object]:
        predicted = {f"predicted_{name}_s": point.mean_s(name) for name in ("ttft", "tpot")}
        return {**point.run.read, **predicted, "is_limited_by_memory": point.is_limited_by_memory}

    facts = {key: value for key, value in asdict(campaign).items() if not isinstance(value, frozenset)}
    return {"campaign": facts, "points": [*map(plain, points)], "left_out": [*map(plain, held_out)]}


def _validate_log(log: Path, scenario: Path, page: Path | None, columns: str | None, *, as_json: bool) -> None:
    """Replay the requests of a log on the server of a scenario; print the decision and the errors."""
    from simserve.api import validate
    from simserve.workload.readers.logs.glossary import given_names

    with terminal.progress_bar():
        answer = validate(log, scenario, columns=given_names(columns))
    if page is not None:
        answer.page(page)
        terminal.message(f"wrote {page}")
    terminal.answer(answer.document, answer.printed, as_json=as_json)
