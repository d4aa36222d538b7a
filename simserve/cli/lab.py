"""`simserve lab`: how the shipped constants are made, and how far off they are on public runs."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from simserve.cli import terminal
from simserve.cli.calibrate import CAMPAIGN, FOLDER, EngineToFit, campaign_named
from simserve.cli.measure import measure_card
from simserve.cli.options import AsJson
from simserve.cli.validate import Page, PerClient

if TYPE_CHECKING:
    from simserve.lab.server_error_fit import SpreadFit
    from simserve.lab.write import CardFit

app = typer.Typer(
    help="Time a card, fit a card or the errors of servers to runs, and compare with public runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("measure")(measure_card)

MOVED: Mapping[str, Mapping[str, str]] = {
    "calibrate": {
        **dict.fromkeys(("--measure", "--models", "--minutes"), "measure GPU TABLE.csv"),
        "--serving-runs": "card GPU ROWS",
        **dict.fromkeys(("--public", "--most"), "server-errors FOLDER"),
    },
    "validate": {"--kernels": "kernels CALIBRATION", **dict.fromkeys(("--public", "--most"), "league FOLDER")},
}
"""Options that other commands had, by command, and the subcommands that replace them."""


class WithMovedOptions(TyperCommand):
    """A command that tells of an option of MOVED where its work is done now."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # a type that typer does not export
        """Refuse options of MOVED, and read the others."""
        moved = MOVED[str(self.name)]
        option = next((name for word in args if (name := word.partition("=")[0]) in moved), None)
        if option is not None:
            raise typer.BadParameter(f"has moved; run simserve lab {moved[option]}", ctx, param_hint=option)
        return super().parse_args(ctx, args)


Folder = Annotated[Path, typer.Argument(help="Public runs and logs (docs/league.md).", show_default=False)]
Most = Annotated[
    int | None, typer.Option("--most", min=1, help="At most N runs of each data set, evenly spaced; default: all.")
]
FitFolder = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write to.")]


@app.command("kernels")
def kernels(
    calibration: Annotated[str, typer.Argument(help="h100-sxm/vllm, or a file.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Print errors of kernels on held-out shapes."""
    from dataclasses import asdict

    from simserve.lab.write import with_held_out_kernels

    held_out = with_held_out_kernels(calibration)
    if as_json:
        spreads = [{"op": op, "dtype": dtype, **asdict(spread)} for (op, dtype), spread in held_out.spreads.items()]
        version = held_out.engine_version
        terminal.result_json({"calibration": calibration, "engine_version": version, "held_out": spreads})
        return
    table: list[Sequence[str]] = [("operation", "dtype or GPUs", "mean error", "bias", "90% range")]
    for (op, dtype), spread in held_out.spreads.items():
        within = f"{spread.p05 - 1:+.0%} to {spread.p95 - 1:+.0%}"
        table.append((op, dtype, f"{spread.mape_frac:.1%}", f"{spread.bias_frac:+.1%}", within))
    title = f"Kernels of {held_out.engine} {held_out.engine_version} on {held_out.gpu}, on held-out shapes"
    terminal.result(f"{title}\n\n{terminal.table(table)}")


@app.command("card")
def card(
    gpu: Annotated[str, typer.Argument(help="GPU in the catalog: mi300x.", show_default=False)],
    rows: Annotated[Path, typer.Argument(help="CSV of serving runs, or of InferenceX.", show_default=False)],
    engine: EngineToFit = None,
    campaign: Annotated[str, typer.Option("--campaign", help="Benchmark setup of the runs.")] = CAMPAIGN,
    out: FitFolder = FOLDER,
) -> None:
    """Fit a card without timings to serving runs. A few factors slow the kernels of the card that it resembles."""
    from datetime import date

    from simserve import catalog
    from simserve.lab.card_fit import BOUNDS, factors_for, fit_card, read_runs
    from simserve.lab.write import base_of, card_data, source_of, write_calibration

    card, name = catalog.load_gpu(gpu), catalog.load_engine(engine or "vllm").name
    gpu, donor = card.name, card.kernels_like
    chosen = campaign_named(campaign)
    base = base_of(gpu, name, donor)
    runs, unused = read_runs(rows, gpu, name, chosen)
    fit = fit_card(runs, base, factors_for(runs), terminal.message)
    source = {**source_of(rows), "n_rows": len(runs)}
    path = out / gpu / f"{name}.json"
    changed = write_calibration(path, card_data(fit, runs, [source], unused), today=date.today().isoformat())
    sentence = f"Fitted to {len(runs)} runs; each of {len(fit.parts)} parts is left out in turn."
    terminal.result("\n\n".join([sentence, *map(terminal.table, _card_tables(fit))]))
    terminal.message(f"{'wrote' if changed else 'unchanged:'} {path}")
    terminal.warnings(f"rows left out: {n}, {reason}" for reason, n in unused.items())
    at_bound = [name for name, each in fit.fitted.items() if each.value in BOUNDS]
    terminal.warnings(f"{name} is at its bound: it stands for another cost" for name in at_bound)


def _card_tables(fit: "CardFit") -> list[list[Sequence[str]]]:
    """Return the fitted factors, those that stay, and the errors of what was left out."""
    factors = [(name, f"{each.value:.3g}", f"{each.low:.3g}–{each.high:.3g}") for name, each in fit.fitted.items()]
    errors = [
        (name.removesuffix("_s").upper(), f"{each.scaled_frac:.1%}", f"{each.fitted_frac:.1%}", f"{each.spread:.2f}")
        for name, each in fit.errors.items()
    ]
    return [
        [(f"kernels of {fit.base} times", "fitted", "without one part"), *factors],
        [("as scaled", "why"), *fit.as_scaled.items()],
        [("left out", "scaled", "fitted", "spread of logs"), *errors],
    ]


@app.command("server-errors")
def server_errors(folder: Folder, most: Most = None, out: FitFolder = FOLDER, as_json: AsJson = False) -> None:
    """Estimate errors of servers from public runs: how far off predictions are where no constant was fitted."""
    from simserve.lab.public import predict_public, read_public, spread_out
    from simserve.lab.server_error_fit import data_of
    from simserve.lab.write import make_folder
    from simserve.scenario.server_errors import NAME
    from simserve.tables.files import json_text, replace_text

    cases, skipped = read_public(folder, left_out=True, with_package=True)
    runs = predict_public(spread_out(cases, most), terminal.message)
    data, fits = data_of(folder, runs, most)
    path = out / f"{NAME}.json"
    make_folder(out)
    replace_text(path, json_text(data))
    if as_json:
        terminal.result_json(data)
    else:
        terminal.result(terminal.table(_error_rows(fits)))
    terminal.message(f"wrote {path}")
    terminal.warnings(f"skipped: {each}" for each in skipped)
    terminal.warnings(f"refused: {each.run.label}: {each.reason}" for each in runs if each.predicted_s is None)


def _error_rows(fits: "Mapping[str, SpreadFit]") -> list[Sequence[str]]:
    """Return a row for each latency: standard deviations by reason, and how often intervals held."""
    from simserve.scenario.server_errors import REASONS

    rows: list[Sequence[str]] = [("", "runs", "groups", *REASONS, "held before", "held", "held, by group")]
    for name, fit in fits.items():
        held = (fit.held_before_frac, fit.held_frac, fit.held_of_groups_frac)
        cells = (*(f"{fit.sd[fact]:.1%}" for fact in REASONS), *(f"{each:.0%}" for each in held))
        rows.append((name.removesuffix("_s").upper(), f"{fit.n_runs}", f"{fit.n_groups}", *cells))
    return rows


@app.command("league")
def league(
    folder: Folder,
    most: Most = None,
    requests_per_client: PerClient = None,
    page: Page = None,
    as_json: AsJson = False,
) -> None:
    """Compare with public runs, by data set. Errors and interval coverage stand beside what peers published."""
    from simserve.lab.league import league_facts
    from simserve.lab.public import predict_public, read_public, spread_out
    from simserve.tables.files import plain

    cases, skipped = read_public(folder, requests_per_client, with_package=True)
    runs = predict_public(spread_out(cases, most), terminal.message)
    facts = plain(league_facts(runs, Counter(case.data_set for case in cases), skipped))
    if page is not None:
        from simserve.lab.league_page import render
        from simserve.tables.files import replace_text

        replace_text(page, render(facts))
        terminal.message(f"wrote {page}")
    if as_json:
        terminal.result_json(facts)
    else:
        terminal.result("\n".join(_league_lines(facts)))
    terminal.warnings(f"skipped: {each}" for each in facts["skipped"])
    reasons = Counter((run["file"], run["refused"]) for run in facts["runs"] if run["refused"])
    terminal.warnings(f"refused: {n} of {file}: {reason}" for (file, reason), n in reasons.items())


def _league_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    from simserve.lab.league_page import NOTE, PEERS_HEAD, SETS_HEAD, lead, peer_rows, set_rows

    yield lead(facts)
    yield NOTE
    yield from ("", terminal.table([SETS_HEAD, *set_rows(facts)]))
    if facts["peers"]:
        yield from ("", terminal.table([PEERS_HEAD, *peer_rows(facts)]))
