"""`simserve catalog`, `init` and `schema`: what comes with simserve, a starter scenario, and the schema of all."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli import terminal

if TYPE_CHECKING:
    from simserve.plugins import Description

FAMILIES = {
    "schedulers": "schedulers",
    "routers": "routers",
    "admission": "admission",
    "splitters": "splitters",
    "autoscalers": "autoscalers",
    "arrivals": "workload.arrivals",
    "lengths": "workload.lengths",
    "prefixes": "workload.prefixes",
}
"""Kinds of policies, with the package of each."""
WIDTH = 100
"""Characters of a line of names."""

KINDS = ("models", "families", "gpus", "engines", *FAMILIES)


def catalog(
    kind: Annotated[str | None, typer.Argument(help=f"Kind of entry: {', '.join(KINDS)}.", show_default=False)] = None,
    name: Annotated[str | None, typer.Argument(help="Entry to show in full.", show_default=False)] = None,
) -> None:
    """List models, their families, GPUs, engines and policies, or show one."""
    from textwrap import wrap

    if kind is None:
        names = {each: wrap(", ".join(_names(each)), WIDTH, break_on_hyphens=False) for each in KINDS}
        rows = [(each if at == 0 else "", line) for each, lines in names.items() for at, line in enumerate(lines)]
        terminal.result(terminal.table(rows, indent=""))
        return
    if kind not in KINDS:
        raise typer.BadParameter(f"no such kind {kind!r}; there are {', '.join(KINDS)}", param_hint="KIND")
    if name is None:
        terminal.result("\n".join(_names(kind)))
    elif kind in FAMILIES:
        from simserve import plugins
        from simserve.allowed_modules import allow_modules

        allow_modules([name.partition(":")[0]], Path(), are_trusted=False)  # named by the user
        terminal.result("\n".join(_policy_lines(plugins.describe(FAMILIES[kind], name))))
    else:
        terminal.result(_entry_table(kind, name))


def _names(kind: str) -> list[str]:
    from simserve import catalog as things
    from simserve import plugins

    return plugins.names(FAMILIES[kind]) if kind in FAMILIES else things.names(kind)


def _entry_table(kind: str, name: str) -> str:
    """Format the fields of an entry, one per line, each with its source after a #; a GPU may also be a file."""
    from dataclasses import asdict

    from simserve import catalog as things
    from simserve.scenario.cards import is_file, load_gpu

    thing = asdict(load_gpu(name)) if kind == "gpus" and is_file(name) else things.describe(kind, name)
    sources = thing.pop("sources", {})
    notes = {key: f"  # {source}" for key, source in sources.items()}
    return terminal.table([(key, _text(value) + notes.get(key, "")) for key, value in thing.items()], indent="")


def _policy_lines(policy: "Description") -> Iterator[str]:
    yield policy.text
    if policy.arguments:
        yield "\nArguments"
    rows = []
    for argument in policy.arguments:
        default = "required" if argument.is_required else f"default {_text(argument.default)}"
        rows.append((argument.name, argument.type, default, argument.meaning))
    yield terminal.table(rows)


def _text(value: Any) -> str:
    """Format a value as a scenario would."""
    from collections.abc import Mapping

    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return str(value)


def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("scenario.yaml"),
    like: Annotated[
        str | None, typer.Option("--from", metavar="NAME", help="Begin with a scenario that comes with simserve.")
    ] = None,
    lists: Annotated[bool, typer.Option("--list", help="List these scenarios, and write nothing.")] = False,
) -> None:
    """Write a commented starter scenario, or a copy of one that comes with simserve."""
    from importlib.resources import files

    from simserve.errors import OutputError
    from simserve.scenario.shipped import about, shipped, shipped_file
    from simserve.tables.files import replace_text

    if lists:
        terminal.result("\n".join(f"@{name}: {about(file)}" for name, file in shipped().items()))
        return
    source = files("simserve.cli").joinpath("starter.yaml") if like is None else shipped_file(like)
    if path.exists() and (not path.is_file() or path.stat().st_size):
        raise OutputError(f"{path}: already exists, and init never overwrites; name another file")
    replace_text(path, source.read_text(encoding="utf-8"))
    terminal.message(f"wrote {path}. Next: simserve run {path}")


def schema() -> None:
    """Print the JSON Schema of a scenario, for editors."""
    from simserve.scenario import scenario_schema

    terminal.result_json(scenario_schema())
