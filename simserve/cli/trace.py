"""`simserve trace`: inspect, convert, anonymize, generate and fit traces."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli import terminal
from simserve.cli.options import AsJson, Columns

if TYPE_CHECKING:
    from simserve.workload.trace import Trace

app = typer.Typer(
    help="Inspect, convert, anonymize, generate and fit traces.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TraceFile = Annotated[Path, typer.Argument(help="Trace file.", show_default=False)]
Format = Annotated[
    str, typer.Option("--format", help="azure, mooncake, burstgpt, vllm, simserve, log, prometheus, weka, or auto.")
]
Out = Annotated[Path, typer.Argument(help="File to write.", show_default=False)]


@app.command("info")
def info(file: TraceFile, format: Format = "auto", columns: Columns = None, as_json: AsJson = False) -> None:
    """Show a trace's rate, burstiness, lengths, shared prefixes and warnings."""
    from simserve.workload.info import trace_info

    facts = trace_info(_read(file, format, columns))
    if as_json:
        terminal.result_json(facts)
        return
    notes, prefixes = facts.pop("notes"), facts["prefixes"] or {}
    facts |= {f"prefixes.{name}": value for name, value in prefixes.items()}
    shown = [(name, _text(value)) for name, value in facts.items() if value is not prefixes]
    terminal.result(terminal.table(shown, indent=""))
    if (stamp_s := facts["stamp_s"]) is not None:
        notes.append(
            f"timestamps are coarse, in steps of {stamp_s:g} s; replay with `spread: uniform` to spread the requests"
        )
    terminal.warnings(notes)


@app.command("convert")
def convert(file: TraceFile, out: Out, format: Format = "auto", columns: Columns = None) -> None:
    """Convert a trace, or the requests of any log, to our .csv or .parquet."""
    _write(_read(file, format, columns), out)


@app.command("anonymize")
def anonymize(file: TraceFile, out: Out, format: Format = "auto", columns: Columns = None) -> None:
    """Write arrivals, lengths and shared prefixes under new ids, without texts, names or the time of day."""
    _write(_read(file, format, columns).anonymous(), out)


@app.command("generate")
def generate(
    out: Out,
    arrivals: Annotated[str, typer.Option("--arrivals", metavar="YAML", help='"{kind: poisson, rate_per_s: 8}"')],
    lengths: Annotated[str, typer.Option("--lengths", metavar="YAML", help='"{kind: profile, name: azure-conv-2023}"')],
    prefixes: Annotated[
        str | None, typer.Option("--prefixes", metavar="YAML", help='"{kind: shared, prefix_tokens: 1000}"')
    ] = None,
    n_requests: Annotated[int | None, typer.Option("--n-requests", min=1, help="Number of requests.")] = None,
    duration_s: Annotated[float | None, typer.Option("--duration-s", help="Or all within this time.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random numbers.")] = 0,
) -> None:
    """Generate a trace from an arrival process, lengths and prefixes, written as in a scenario."""
    from simserve.allowed_modules import allow_modules
    from simserve.errors import TraceError
    from simserve.workload.draws import generate as drawn

    if (n_requests is None) == (duration_s is None):
        raise typer.BadParameter("give exactly one of the two", param_hint="--n-requests or --duration-s")
    if duration_s is not None and not 0 < duration_s < math.inf:
        raise typer.BadParameter(f"must be a positive number, got {duration_s}", param_hint="--duration-s")
    specs = _spec("--arrivals", arrivals), _spec("--lengths", lengths)
    shared = None if prefixes is None else _spec("--prefixes", prefixes)
    kinds = [str(spec if isinstance(spec, str) else spec.get("kind")) for spec in (*specs, shared or "")]
    allow_modules([kind.partition(":")[0] for kind in kinds], Path(), are_trusted=False)  # named by the user
    trace = drawn(*specs, prefixes=shared, n_requests=n_requests, duration_s=duration_s, seed=seed)
    if not len(trace):
        raise TraceError(f"{out}: no request arrives within {duration_s:g} s, so there is no trace; make it longer")
    _write(trace, out)


@app.command("fit")
def fit(
    file: TraceFile,
    out: Out,
    source: Annotated[str, typer.Option("--source", help="Source of the trace, kept in the profile.")] = "",
    license: Annotated[
        str, typer.Option("--license", "--licence", help="License of the trace, kept in the profile.")
    ] = "",
    format: Format = "auto",
    columns: Columns = None,
) -> None:
    """Fit a profile for `lengths: {kind: profile, name: OUT}`, as JSON."""
    from simserve.errors import TraceError
    from simserve.tables.files import json_text, replace_text
    from simserve.workload.lengths.profile import fit_profile

    try:
        profile = fit_profile(_read(file, format, columns), source or file.name, license or "unknown")
    except ValueError as error:
        raise TraceError(f"{file}: {error}") from error
    replace_text(out, json_text(profile))
    terminal.result(str(out))


def _read(file: Path, format: str, columns: str | None) -> "Trace":
    from simserve.workload.readers import read_trace
    from simserve.workload.readers.logs.glossary import given_names

    return read_trace(file, format, given_names(columns))


def _write(trace: "Trace", out: Path) -> None:
    from simserve.workload.readers.simserve import write_trace

    write_trace(trace, out)
    terminal.warnings(trace.notes)
    terminal.result(f"{out}: {len(trace):,} requests")


def _spec(option: str, text: str) -> str | Mapping[str, Any]:
    """Parse a plug-in as in a scenario: a name, or a YAML mapping."""
    from simserve.scenario.yaml_lines import NotYaml, scalar

    try:
        spec = scalar(text)
    except NotYaml as error:
        raise typer.BadParameter(f"{error.rule}: {text!r}", param_hint=option) from error
    if not isinstance(spec, str | Mapping):
        raise typer.BadParameter(f"must be a name or {{kind: name, ...}}, got {text!r}", param_hint=option)
    return spec


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return "  ".join(f"{name} {_text(inner)}" for name, inner in value.items())
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1e4 else f"{value:,.0f}"
