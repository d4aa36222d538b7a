"""`simserve calibrate`: fit kernel costs to measurements."""

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli.run import AsJson

if TYPE_CHECKING:
    from simserve.lab.kernels.fit import Fit

FOLDER = Path("calibration")

FAR_OFF = 0.3
"""Mean held-out error that sound timings never have; shipped calibrations stay below 0.2."""


def calibrate(
    gpu: Annotated[
        str | None, typer.Argument(metavar="GPU", help="GPU in the catalog: h100-sxm.", show_default=False)
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="Engine to fit: vllm (default), sglang or trtllm.")
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option("--from", metavar="TABLE", help="Your own timings as .csv or .parquet (docs/calibration.md)."),
    ] = None,
    engine_version: Annotated[
        str | None, typer.Option("--engine-version", help="Engine version of the timings in --from.")
    ] = None,
    host: Annotated[
        Path | None,
        typer.Option(
            "--host", metavar="ROWS", help="Fit the engine's host constants to serving runs and keep its kernels."
        ),
    ] = None,
    serving_runs: Annotated[
        Path | None,
        typer.Option(
            "--serving-runs", metavar="ROWS", help="Fit a card without timings to serving runs, by a few factors."
        ),
    ] = None,
    campaign: Annotated[
        str, typer.Option("--campaign", help="Benchmark setup of the runs in --host or --serving-runs.")
    ] = "aiconfigurator",
    logs: Annotated[
        list[Path] | None,
        typer.Option(
            "--logs", metavar="LOG", help="Fit host constants to a log of your server (--scenario); may be repeated."
        ),
    ] = None,
    scenario: Annotated[
        Path | None, typer.Option("--scenario", metavar="SCENARIO", help="Server that --logs was recorded on.")
    ] = None,
    measure: Annotated[
        Path | None,
        typer.Option("--measure", metavar="TABLE.csv", help="Time the card at hand into a table for --from (PyTorch)."),
    ] = None,
    models: Annotated[
        str, typer.Option("--models", metavar="MODEL,...", help="Models with layers that --measure times too.")
    ] = "",
    minutes: Annotated[float, typer.Option("--minutes", min=0.0, help="Time limit of --measure.")] = 60.0,
    public: Annotated[
        Path | None,
        typer.Option(
            "--public", metavar="FOLDER", help="Estimate errors of servers that were not fitted (docs/league.md)."
        ),
    ] = None,
    most: Annotated[
        int | None, typer.Option("--most", min=1, help="With --public: at most N runs of each data set, evenly spaced.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder for GPU/ENGINE.json [default: calibration; with --logs reports/<name>-calibrate].",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time the kernels of a GPU, fit their costs to timings or serving runs, or fit a host to runs or logs."""
    from simserve import catalog
    from simserve.cli import terminal
    from simserve.lab.kernels.comm import host_bytes_per_s
    from simserve.lab.write import calibrate as fit_all
    from simserve.lab.write import calibration_data, unfitted, write_calibration

    if measure is not None:
        from simserve.cli.measure import time_card

        fitting = {"--engine": engine, "--from": table, "--host": host, "--engine-version": engine_version}
        fitting |= {"--serving-runs": serving_runs, "--public": public}
        files = {"--most": most, "--logs": logs, "--scenario": scenario, "--out": out, "--json": as_json}
        time_card(gpu, measure, models, minutes, [option for option, value in (fitting | files).items() if value])
        return
    if public is not None:
        basic = {"GPU": gpu, "--engine": engine, "--from": table, "--host": host, "--engine-version": engine_version}
        more = {"--serving-runs": serving_runs, "--logs": logs, "--scenario": scenario, "--models": models}
        refused = [option for option, value in (*basic.items(), *more.items()) if value]
        _fit_server_errors(public, most, refused, out or FOLDER, as_json)
        return
    if most is not None:
        raise typer.BadParameter("is only for --public; leave it out", param_hint="--most")
    if models:
        raise typer.BadParameter("is for --measure; leave it out", param_hint="--models")
    if logs or scenario is not None:
        others = {"GPU": gpu, "--engine": engine, "--from": table, "--host": host, "--engine-version": engine_version}
        others["--serving-runs"] = serving_runs
        _fit_logs(logs or [], scenario, [option for option, value in others.items() if value is not None], out, as_json)
        return
    if gpu is None:
        raise typer.BadParameter("give a GPU of the catalog, or --logs and --scenario", param_hint="GPU")
    if as_json:
        raise typer.BadParameter("is for --logs; leave it out", param_hint="--json")
    card, out = catalog.load_gpu(gpu), out or FOLDER
    name = catalog.load_engine(engine or "vllm").name
    if serving_runs is not None:
        given = {"--from": table, "--host": host, "--engine-version": engine_version}
        _fit_card(gpu, name, serving_runs, campaign, [each for each, value in given.items() if value is not None], out)
        return
    if host is not None:
        _fit_host(gpu, name, host, campaign, out)
        return
    timings, version, made = _timings(gpu, name, table, engine_version)
    fits = fit_all(timings, card)
    path = out / gpu / f"{name}.json"
    changed = write_calibration(path, calibration_data(gpu, name, version, fits, made), today=date.today().isoformat())
    terminal.result(terminal.table(_lines(fits)))
    terminal.message(f"{'wrote' if changed else 'unchanged:'} {path}")
    terminal.warnings(
        f"{fit.op} {fit.dtype}: {n} rows left out: {reason}"
        for fit in fits
        for reason, n in fit.excluded.items()
        if n and reason.startswith("faster")
    )
    host_rate = host_bytes_per_s(timings)
    if host_rate is not None:
        terminal.message(
            f"copies to the host: {host_rate / 1e9:.1f} GB/s; use host_tier: {{bytes_per_s: {host_rate:.3g}}}"
        )
    left = unfitted(timings, fits)
    terminal.warnings(f"{what}: {n} rows left out: too few, or a dtype that uses another's fit" for what, n in left)
    terminal.warnings(
        f"{fit.op} {fit.dtype}: mean error {fit.residuals.mape_frac:.0%} held-out; check that latency_s is in seconds"
        for fit in fits
        if fit.residuals.mape_frac > FAR_OFF
    )


def _fit_server_errors(folder: Path, most: int | None, others: list[str], out: Path, as_json: bool) -> None:
    """Estimate the errors of servers that were not fitted, from public runs, and write them."""
    if others:
        raise typer.BadParameter(f"does not take {', '.join(others)}; leave them out", param_hint="--public")
    from simserve.cli import terminal
    from simserve.lab.public import predict_public, read_public, spread_out
    from simserve.lab.server_error_fit import data_of
    from simserve.lab.write import make_folder
    from simserve.scenario.server_errors import NAME, REASONS
    from simserve.tables.files import json_text, replace_text

    cases, skipped = read_public(folder, left_out=True)
    chosen = cases if most is None else spread_out(cases, most)
    runs = predict_public(chosen, terminal.message)
    data, fits = data_of(folder, runs, most)
    path = out / f"{NAME}.json"
    make_folder(out)
    replace_text(path, json_text(data))
    if as_json:
        terminal.result_json(data)
    else:
        head = ("", "runs", "groups", *REASONS, "held before", "held", "held, by group")
        rows = [
            (
                *(name.removesuffix("_s").upper(), f"{fit.n_runs}", f"{fit.n_groups}"),
                *(f"{fit.sd[fact]:.1%}" for fact in REASONS),
                *(f"{each:.0%}" for each in (fit.held_before_frac, fit.held_frac, fit.held_of_groups_frac)),
            )
            for name, fit in fits.items()
        ]
        terminal.result(terminal.table([head, *rows]))
    terminal.message(f"wrote {path}")
    terminal.warnings(f"skipped: {each}" for each in skipped)
    terminal.warnings(f"refused: {run.label}: {run.reason}" for run in runs if run.predicted_s is None)


def _fit_host(gpu: str, engine: str, rows: Path, campaign: str, out: Path) -> None:
    """Fit an engine's host constants to the serving runs of a GPU, and write them into its calibration."""
    from simserve.cli import terminal
    from simserve.cli.validate import campaign_named
    from simserve.lab.host_fit import TTFT_IS_USABLE, at_bound, fit_host
    from simserve.lab.serving import read_rows
    from simserve.lab.write import write_host, written

    chosen_runs = [row for row in read_rows(rows) if (row.engine, row.gpu) == (engine, gpu)]
    if not chosen_runs:
        raise typer.BadParameter(f"no run of {engine} on {gpu} in {rows}", param_hint="--host")
    chosen = campaign_named(campaign)
    path = out / gpu / f"{engine}.json"
    written(path)  # fails before the fit, which takes minutes
    fit = fit_host(chosen_runs, chosen, progress=terminal.message)
    versions = ", ".join(sorted({row.engine_version for row in chosen_runs}))
    source = f"fitted to {fit.n_rows} serving runs of {engine} {versions} on {gpu} ({rows.name}, campaign {campaign})"
    unfitted = () if engine in TTFT_IS_USABLE else ("receive_s", "receive_token_s", "respond_s")
    constants = {key: value for key, value in fit.constants.items() if key not in unfitted}
    write_host(path, constants, source)
    lines = [(key, f"{value:.3g}") for key, value in constants.items()]
    errors = [("mean error of TPOT", f"{fit.tpot_mape_frac:.1%}"), ("mean error of TTFT", f"{fit.ttft_mape_frac:.1%}")]
    terminal.result(terminal.table([*lines, *errors]))
    terminal.message(f"wrote {path}")
    terminal.warnings(
        f"{name} is at its bound, {value:g}: these times include another cost"
        for name, value in constants.items()
        if at_bound(name, value)
    )


def _fit_card(gpu: str, engine: str, rows: Path, campaign: str, others: list[str], out: Path) -> None:
    """Fit factors on the kernels of another card to serving runs, and write them as the card's calibration."""
    from hashlib import sha256

    from simserve import catalog
    from simserve.cli import terminal
    from simserve.cli.validate import campaign_named
    from simserve.lab.card_factors import base_of, card_data, factors_for
    from simserve.lab.card_fit import BOUNDS, fit_card
    from simserve.lab.card_runs import read_runs
    from simserve.lab.write import write_card

    if others:
        rule = f"does not go with {', '.join(others)}; leave them out"
        raise typer.BadParameter(rule, param_hint="--serving-runs")
    campaign_named(campaign)
    base = base_of(gpu, engine, catalog.load_gpu(gpu).kernels_like)
    runs, unused = read_runs(rows, gpu, engine, campaign)
    fit = fit_card(runs, base, factors_for(runs), terminal.message)
    source = {"file": rows.name, "sha256": sha256(rows.read_bytes()).hexdigest(), "n_rows": len(runs)}
    path = out / gpu / f"{engine}.json"
    changed = write_card(path, card_data(fit, runs, [source], unused), today=date.today().isoformat())
    factors = [(name, f"{each.value:.3g}", f"{each.low:.3g}–{each.high:.3g}") for name, each in fit.fitted.items()]
    errors = [
        (name.removesuffix("_s").upper(), f"{each.scaled_frac:.1%}", f"{each.fitted_frac:.1%}", f"{each.spread:.2f}")
        for name, each in fit.errors.items()
    ]
    tables = [
        terminal.table([(f"kernels of {base} times", "fitted", "without one part"), *factors]),
        terminal.table([("as scaled", "why"), *fit.as_scaled.items()]),
        terminal.table([("left out", "scaled", "fitted", "spread of logs"), *errors]),
    ]
    sentence = f"Fitted to {len(runs)} runs; each of {len(fit.parts)} parts is left out in turn."
    terminal.result("\n\n".join([sentence, *tables]))
    terminal.message(f"{'wrote' if changed else 'unchanged:'} {path}")
    terminal.warnings(f"rows left out: {n}, {reason}" for reason, n in unused.items())
    at_bound = [name for name, each in fit.fitted.items() if each.value in BOUNDS]
    terminal.warnings(f"{name} is at its bound: it stands for another cost" for name in at_bound)


def _fit_logs(logs: list[Path], scenario: Path | None, others: list[str], out: Path | None, as_json: bool) -> None:
    """Fit host constants to logs of the server of a scenario; write a calibration and a page."""
    from hashlib import sha256

    from simserve.cli import terminal
    from simserve.lab.log_fit import Server, fit_facts, fit_logs, host_constants
    from simserve.lab.pages.log_fit import ERRORS_HEAD, HEAD, constant_rows, error_rows, render, sentence
    from simserve.lab.write import make_folder, write_fitted
    from simserve.tables.files import plain, replace_text
    from simserve.workload.readers.logs import read_log

    if others:
        rule = f"takes GPU and engine from --scenario, and does not go with {', '.join(others)}; leave them out"
        raise typer.BadParameter(rule, param_hint="--logs")
    if scenario is None or not logs:
        raise typer.BadParameter("go together: a log, and the scenario of its server", param_hint="--logs, --scenario")
    server = Server(scenario)
    fit = fit_logs([read_log(path, server.scenario.seed) for path in logs], server, terminal.message)
    facts = plain(fit_facts(fit, server, logs))
    folder = out or Path("reports") / f"{server.scenario.name}-calibrate"
    make_folder(folder)
    base, path = server.calibration, folder / fit.setup.gpu.name / f"{fit.setup.engine.name}.json"
    if base is not None:
        made = [{"file": each.name, "sha256": sha256(each.read_bytes()).hexdigest()} for each in logs]
        host = host_constants(fit, facts["logs"])
        write_fitted(path, base, host, fit.setup.engine.version, made)
    replace_text(folder / "report.html", render(facts))
    if as_json:
        terminal.result_json(facts)
    else:
        kept = terminal.table([("as shipped", "why"), *facts["as_shipped"].items()])
        tables = [terminal.table([HEAD, *constant_rows(facts)])] if facts["fitted"] else []
        errors = terminal.table([("left out", *ERRORS_HEAD[1:]), *error_rows(facts)])
        use = f"Use it: cluster.pools.0.calibration={path}" if base else f"Use them: engine: {facts['engine_section']}"
        terminal.result("\n\n".join([sentence(facts), *tables, kept, errors, use]))
    terminal.message(f"wrote {folder / 'report.html'}" + (f" and {path}" if base else ""))
    terminal.warnings(facts["warnings"])


def _timings(gpu: str, engine: str, table: Path | None, engine_version: str | None) -> tuple[Any, str, dict[str, Any]]:
    """Return the timings, the version of the engine, and their source."""
    from dataclasses import asdict
    from hashlib import sha256

    from simserve.lab.kernels.package import PACKAGE, package_version, read_package
    from simserve.lab.kernels.table import read_timings

    if table is not None:
        timings = read_timings(table)
        source = {"file": table.name, "sha256": sha256(table.read_bytes()).hexdigest(), "n_rows": len(timings)}
        return timings, engine_version or "unknown", {"from": [source]}
    timings, sources, version = read_package(gpu, engine)
    made = {"package": PACKAGE, "package_version": package_version(), "from": [asdict(each) for each in sources]}
    return timings, version, made


def _lines(fits: "list[Fit]") -> list[tuple[str, ...]]:
    """Format one line per fit: rows and held-out errors."""
    head: tuple[str, ...] = ("operation", "dtype", "rows", "left out", "held out", "mean error", "median", "bias")
    rows: list[tuple[str, ...]] = [
        (
            fit.op,
            fit.dtype,
            f"{fit.n_rows:,}",
            f"{sum(fit.excluded.values()):,}",
            f"{fit.residuals.n_rows:,}",
            f"{fit.residuals.mape_frac:.1%}",
            f"{fit.residuals.median_ape_frac:.1%}",
            f"{fit.residuals.bias_frac:+.1%}",
        )
        for fit in fits
    ]
    return [head, *rows]
