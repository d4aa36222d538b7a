"""`simserve calibrate`: fit the kernels of a GPU to timings, and host constants to serving runs or logs."""

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli import terminal
from simserve.cli.options import NO, AsJson, Columns

if TYPE_CHECKING:
    from simserve.lab.campaigns import Campaign
    from simserve.lab.kernels import KernelFit

FOLDER = Path("calibration")
CAMPAIGN = "aiconfigurator"

FAR_OFF = 0.3
"""Mean held-out error that sound timings never have; shipped calibrations stay below 0.2."""

# Kernels, fitted to timings.
Gpu = Annotated[str | None, typer.Argument(help="GPU in the catalog: h100-sxm.", show_default=False)]
EngineToFit = Annotated[str | None, typer.Option("--engine", help="Engine to fit: vllm (default), sglang or trtllm.")]
Timings = Annotated[
    Path | None,
    typer.Option("--from", metavar="TABLE", help="Your own timings as .csv or .parquet (docs/calibration.md)."),
]
EngineVersion = Annotated[str | None, typer.Option("--engine-version", help="Engine version of the timings in --from.")]
# The host, fitted to serving runs.
HostRows = Annotated[
    Path | None,
    typer.Option(
        "--host", metavar="ROWS", help="Fit the engine's host constants to serving runs and keep its kernels."
    ),
]
HostCampaign = Annotated[str, typer.Option("--campaign", help="Benchmark setup of the runs in --host.")]
# The host, fitted to logs.
Logs = Annotated[
    list[Path] | None,
    typer.Option(
        "--logs", metavar="LOG", help="Fit constants and kernels to a log of your server (--scenario); may be repeated."
    ),
]
LogScenario = Annotated[
    Path | None, typer.Option("--scenario", metavar="SCENARIO", help="Server that --logs was recorded on.")
]
# All of them.
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Folder for GPU/ENGINE.json [default: calibration; with --logs reports/<name>-calibrate].",
    ),
]


def calibrate(
    gpu: Gpu = None,
    engine: EngineToFit = None,
    table: Timings = None,
    engine_version: EngineVersion = None,
    host: HostRows = None,
    campaign: HostCampaign = CAMPAIGN,
    logs: Logs = None,
    scenario: LogScenario = None,
    columns: Columns = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Fit the kernels of a GPU to timings, host constants to serving runs (--host), or both to logs (--logs)."""
    from simserve import catalog

    if logs or scenario is not None:
        others = {"GPU": gpu, "--engine": engine, "--from": table, "--host": host, "--engine-version": engine_version}
        given = [option for option, value in others.items() if value is not None]
        _fit_logs(logs or [], scenario, given, columns, out, as_json=as_json)
        return
    if columns is not None:
        raise typer.BadParameter("is for --logs; leave it out", param_hint="--map")
    if gpu is None:
        raise typer.BadParameter("give a GPU of the catalog, or --logs and --scenario", param_hint="GPU")
    if as_json:
        raise typer.BadParameter("is for --logs; leave it out", param_hint="--json")
    gpu = catalog.load_gpu(gpu).name  # which must be there, whatever is fitted
    name, folder = catalog.load_engine(engine or "vllm").name, out or FOLDER
    if host is not None:
        _fit_host(gpu, name, host, campaign, folder)
    else:
        _fit_kernels(gpu, name, table, engine_version, out=folder)


def campaign_named(name: str) -> "Campaign":
    """Return a campaign by its name."""
    from simserve.lab.campaigns import CAMPAIGNS

    if name not in CAMPAIGNS:
        raise typer.BadParameter(
            f"no such campaign {name!r}; there are {', '.join(CAMPAIGNS)}", param_hint="--campaign"
        )
    return CAMPAIGNS[name]


def _fit_kernels(gpu: str, engine: str, table: Path | None, engine_version: str | None, *, out: Path) -> None:
    """Fit all kernels to timings, and write them with the host constants that the file had."""
    from simserve import catalog
    from simserve.lab.kernels.comm import host_bytes_per_s
    from simserve.lab.write import calibrate as fit_all
    from simserve.lab.write import calibration_data, unfitted, write_calibration

    timings, version, made = _timings(gpu, engine, table, engine_version)
    fits = fit_all(timings, catalog.load_gpu(gpu))
    path = out / gpu / f"{engine}.json"
    changed = write_calibration(path, calibration_data(gpu, engine, version, fits, made), date.today().isoformat())
    terminal.result(terminal.table(_kernel_rows(fits)))
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


def _fit_host(gpu: str, engine: str, rows: Path, campaign: str, out: Path) -> None:
    """Fit an engine's host constants to the serving runs of a GPU, and write them into its calibration."""
    from simserve.lab.campaigns import run_of
    from simserve.lab.host_fit import TTFT_IS_USABLE, at_bound, fit_host
    from simserve.lab.run_tables import read_rows
    from simserve.lab.write import write_host, written

    own = [row for row in read_rows(rows) if (row.engine, row.gpu) == (engine, gpu)]
    if not own:
        raise typer.BadParameter(f"no run of {engine} on {gpu} in {rows}", param_hint="--host")
    chosen = campaign_named(campaign)
    path = out / gpu / f"{engine}.json"
    written(path)  # fails before the fit, which takes minutes
    fit = fit_host([run_of(row, chosen) for row in own], terminal.message)
    versions = ", ".join(sorted({row.engine_version for row in own}))
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


def _fit_logs(
    logs: list[Path], scenario: Path | None, others: list[str], columns: str | None, out: Path | None, *, as_json: bool
) -> None:
    """Fit constants and kernels to logs of the server of a scenario; write a calibration and a page."""
    from simserve.lab.fitted_log import fit_facts, write_fitted
    from simserve.lab.log_fit import fit_files
    from simserve.lab.log_pages import tell_fit
    from simserve.lab.server import Server
    from simserve.lab.write import make_folder
    from simserve.report.html import page
    from simserve.tables.files import plain, replace_text
    from simserve.workload.readers.logs.glossary import LogReading, given_names

    if others:
        rule = f"takes GPU and engine from --scenario, and does not go with {', '.join(others)}; leave them out"
        raise typer.BadParameter(rule, param_hint="--logs")
    if scenario is None or not logs:
        raise typer.BadParameter("go together: a log, and the scenario of its server", param_hint="--logs, --scenario")
    server = Server(scenario)
    fit = fit_files(logs, server, terminal.message, LogReading(given_names(columns)))
    facts = plain(fit_facts(fit, server, logs))
    folder = out or Path("reports") / f"{server.scenario.name}-calibrate"
    make_folder(folder)
    base, path = server.calibration, folder / fit.setup.gpu.name / f"{fit.setup.engine.name}.json"
    if base is not None:
        write_fitted(path, base, fit, logs)
    use = f"Use it: cluster.pools.0.calibration={path}" if base else f"Use them: engine: {facts['engine_section']}"
    if not fit.is_enough:
        used = f"Only {fit.used_frac:.0%} of the {fit.unit} could be used"
        use = f"{used}: log a time with less load before you use it."
    document = tell_fit(facts, use)
    replace_text(folder / "report.html", page(document))
    terminal.message(f"wrote {folder / 'report.html'}" + (f" and {path}" if base else ""))
    terminal.answer(document, facts, as_json=as_json)
    if fit.at_bound:
        raise typer.Exit(NO)


def _timings(gpu: str, engine: str, table: Path | None, engine_version: str | None) -> tuple[Any, str, dict[str, Any]]:
    """Return the timings, the version of the engine, and their source."""
    from dataclasses import asdict

    from simserve.lab.kernels.package import PACKAGE, package_version, read_package
    from simserve.lab.kernels.table import read_timings
    from simserve.lab.write import source_of

    if table is not None:
        timings = read_timings(table)
        return timings, engine_version or "unknown", {"from": [{**source_of(table), "n_rows": len(timings)}]}
    timings, sources, version = read_package(gpu, engine)
    made = {"package": PACKAGE, "package_version": package_version(), "from": [asdict(each) for each in sources]}
    return timings, version, made


def _kernel_rows(fits: "list[KernelFit]") -> list[tuple[str, ...]]:
    """Format one line per fit: rows and held-out errors."""
    rows: list[tuple[str, ...]] = [
        ("operation", "dtype", "rows", "left out", "held out", "mean error", "median", "bias")
    ]
    for fit in fits:
        held = fit.residuals
        counts = (f"{n:,}" for n in (fit.n_rows, sum(fit.excluded.values()), held.n_rows))
        errors = (f"{held.mape_frac:.1%}", f"{held.median_ape_frac:.1%}", f"{held.bias_frac:+.1%}")
        rows.append((fit.op, fit.dtype, *counts, *errors))
    return rows
