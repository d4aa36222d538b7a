"""`simserve catalog`: what there is to choose from."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from simserve.plugins import Description

FAMILIES = {
    "schedulers": "schedulers",
    "routers": "routers",
    "admission": "admission",
    "splitters": "splitters",
    "arrivals": "workload.arrivals",
    "lengths": "workload.lengths",
    "prefixes": "workload.prefixes",
}
"""Kinds that are policies, and the package each lives in."""
KINDS = ("models", "gpus", "engines", *FAMILIES)


def catalog(
    kind: Annotated[str | None, typer.Argument(help=f"One of {', '.join(KINDS)}.", show_default=False)] = None,
    name: Annotated[str | None, typer.Argument(help="One entry of that kind, whole.", show_default=False)] = None,
) -> None:
    """Show which models, GPUs, engines and policies there are."""
    from simserve.cli import terminal

    if kind is None:
        terminal.result(terminal.table([(each, ", ".join(_names(each))) for each in KINDS], indent=""))
        return
    if kind not in KINDS:
        raise typer.BadParameter(f"no such kind {kind!r}; there are {', '.join(KINDS)}", param_hint="KIND")
    if name is None:
        terminal.result("\n".join(_names(kind)))
    elif kind in FAMILIES:
        from simserve import plugins

        terminal.result("\n".join(_policy_lines(plugins.describe(FAMILIES[kind], name))))
    else:
        from simserve import catalog as things

        terminal.result(_thing_table(things.describe(kind, name)))


def _names(kind: str) -> list[str]:
    from simserve import catalog as things
    from simserve import plugins

    return plugins.names(FAMILIES[kind]) if kind in FAMILIES else things.names(kind)


def _thing_table(thing: dict[str, Any]) -> str:
    """The facts of a thing, a line each; after a #, the source of those that have their own."""
    from simserve.cli.terminal import table

    sources = thing.pop("sources", {})
    notes = {key: f"  # {source}" for key, source in sources.items()}
    return table([(key, _text(value) + notes.get(key, "")) for key, value in thing.items()], indent="")


def _policy_lines(policy: "Description") -> Iterator[str]:
    from simserve.cli.terminal import table

    yield policy.text
    if policy.arguments:
        yield "\nArguments"
    rows = []
    for argument in policy.arguments:
        default = "required" if argument.is_required else f"default {_text(argument.default)}"
        rows.append((argument.name, argument.type, default, argument.meaning))
    yield table(rows)


def _text(value: Any) -> str:
    """A value as a scenario would write it."""
    from collections.abc import Mapping

    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, float):
        return f"{value:g}"
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return str(value)
