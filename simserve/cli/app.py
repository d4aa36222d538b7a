"""The list of commands. Their modules defer heavy imports, so that `simserve --help` is fast."""

from typing import Annotated, Any

import typer

from simserve.cli import (
    calibrate,
    capacity,
    catalog,
    check,
    explain,
    export,
    fleets,
    lab,
    plan,
    run,
    servers,
    sweep,
    terminal,
    trace,
    validate,
)

METAVARS = {"by": "noise|total", "objective": "r|cost|throughput", "steps": "stretch|full|none", "source": "TEXT"}
METAVARS |= {"engine_version": "VERSION", "duration_s": "SECONDS", "minutes": "MINUTES"}
METAVARS |= dict.fromkeys(("engine", "campaign", "format"), "NAME")
METAVARS |= dict.fromkeys(("confidence", "goal", "growth", "precision", "shortest_frac", "tolerance"), "SHARE")
"""What help shows as the value of an option that does not say it itself; of others, which are numbers, N."""

app = typer.Typer(
    help="Simulate an LLM serving cluster: from a scenario file to latency percentiles and goodput.",
    epilog="Exit codes: 0 success, 1 the answer is no, 2 bad input, 130 interrupted. Documentation: "
    "https://github.com/OWNER/simserve/tree/main/docs",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.util import find_spec

        from simserve.version import __version__

        engine = find_spec("simserve.engine.replica")
        build = "pure" if engine is None or str(engine.origin).endswith(".py") else "compiled"
        terminal.result(f"simserve {__version__} ({build})")
        raise typer.Exit


@app.callback()
def _simserve(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Simulate an LLM serving cluster: from a scenario file to latency percentiles and goodput."""


app.command("run")(run.run)
app.command("explain")(explain.explain)
app.command("init")(catalog.init)
app.command("report")(export.report)
app.add_typer(trace.app, name="trace")
app.command("catalog")(catalog.catalog)
app.command("calibrate", cls=lab.WithMovedOptions)(calibrate.calibrate)
app.command("validate", cls=lab.WithMovedOptions)(validate.validate)
app.add_typer(lab.app, name="lab")
app.command("compare")(check.compare)
app.command("capacity")(capacity.capacity)
app.command("sweep")(sweep.sweep)
app.command("autoscale")(fleets.autoscale)
app.command("resilience")(fleets.resilience)
app.command("check")(check.check)
app.command("plan")(plan.plan)
app.command("export")(export.export)
app.command("tune")(servers.tune)
app.command("twin")(servers.twin)
app.command("schema")(catalog.schema)


def command() -> Any:
    """Return the program; its help shows values as words, and not as types."""
    program = typer.main.get_command(app)
    _name_values(program)
    return program


def _name_values(command: Any) -> None:
    for each in command.params:
        if each.param_type_name == "argument":
            each.metavar = each.metavar or each.name.upper()
            each.display_type_rich = lambda **_: ""  # which typer shows beside it, as <list[Path]>
        elif each.metavar is None and not each.is_flag:
            each.metavar = METAVARS.get(each.name, "N")
    for each in getattr(command, "commands", {}).values():
        _name_values(each)
