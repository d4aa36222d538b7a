"""The pages of the reference that are made from the program: all commands, the catalog and the Python API."""

from collections.abc import Iterable, Mapping
from typing import Any


def commands() -> str:
    """Return the page of all commands and their options, from their help."""
    from typer.cli import get_docs_for_click

    from simserve.cli.app import command

    program = command()
    with program.make_context("simserve", ["schema"]) as context:
        return get_docs_for_click(obj=program, ctx=context, name="simserve", title="All options")


def catalog() -> str:
    """Return the page of all models, GPUs, engines and policies."""
    from simserve.catalog import describe, names
    from simserve.cli.catalog import FAMILIES

    entries = {kind: [describe(kind, name) for name in names(kind)] for kind in ("models", "gpus", "engines")}
    parts = [
        "# Catalog",
        "What a scenario can name. `simserve catalog KIND NAME` shows an entry with its sources; "
        "[Scenario](scenario.md) has the keys of each policy.",
    ]
    parts += ["## Models", "An id of the Hugging Face hub is a name, too.", table(map(model, entries["models"]))]
    parts += ["## GPUs", "One GPU each; peaks are dense.", table(map(gpu, entries["gpus"]))]
    parts += ["## Engines", table(map(engine, entries["engines"]))]
    parts += [part for family in FAMILIES for part in policies(family)]
    return "\n\n".join(parts) + "\n"


def table(rows: Iterable[Mapping[str, object]]) -> str:
    """Return rows with the same keys as a table."""
    listed = [{key: str(value) for key, value in row.items()} for row in rows]
    heads = list(listed[0])
    lines = [heads, ["---"] * len(heads), *([row[head] for head in heads] for row in listed)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def model(entry: dict[str, Any]) -> dict[str, object]:
    kinds = ", ".join(f"{group['n_layers']} {group['kind']}" for group in entry["groups"])
    experts = entry["experts"]
    return {
        "model": f"`{entry['name']}`",
        "layers": kinds,
        "hidden": f"{entry['hidden_size']:,}",
        "experts": f"{experts['top_k']} of {experts['n_experts']}" if experts else "",
        "context": f"{entry['max_position_embeddings']:,}",
        "weights": entry["weight_dtype"] or "bf16",
        "source": entry["source"].removeprefix("Hugging Face, ").removesuffix(", config.json"),
    }


def gpu(entry: dict[str, Any]) -> dict[str, object]:
    def peak(dtype: str) -> str:
        return f"{entry['flop_per_s'][dtype] / 1e12:,.0f}" if dtype in entry["flop_per_s"] else ""

    return {
        "GPU": f"`{entry['name']}`",
        "bf16, TFLOP/s": peak("bf16"),
        "fp8": peak("fp8"),
        "fp4": peak("fp4"),
        "memory, GB": f"{entry['hbm_bytes'] / 1e9:.0f}",
        "TB/s": f"{entry['hbm_bytes_per_s'] / 1e12:.2f}",
        "link, GB/s": f"{entry['link_bytes_per_s'] / 1e9:.0f}",
        "W": entry["tdp_w"],
        "$/h": entry["price_per_hour_usd"],
    }


def engine(entry: dict[str, Any]) -> dict[str, object]:
    from simserve.catalog.load import versions
    from simserve.servers.twin import TITLES

    known = [] if entry["name"] == "ideal" else versions(entry["name"])
    return {
        "engine": f"`{entry['name']}`",
        "is": TITLES.get(entry["name"], "the bare data-sheet roofline"),
        "default version": entry["version"],
        "versions with constants": ", ".join(known),
        "scheduler": f"`{entry['scheduler']['kind']}`",
    }


def policies(family: str) -> Iterable[str]:
    """Yield what each policy of a family does; its keys are those of the scenario's page."""
    from simserve import plugins
    from simserve.cli.catalog import FAMILIES

    yield f"## {family.capitalize()}"
    for name in plugins.names(FAMILIES[family]):
        yield f"### {family}: {name}"
        yield plugins.describe(FAMILIES[family], name).text


def api() -> str:
    """Return the page of the Python API, whose text mkdocstrings takes from the docstrings."""
    import simserve
    from simserve import _HOMES

    functions = [name for name in simserve.__all__ if name[0].islower()]
    classes = [name for name in simserve.__all__ if name[0].isupper()]
    parts = ["# From Python: functions and classes", "[From Python](../python.md) has examples."]
    for title, names in (("Functions", functions), ("Classes", classes)):
        parts += [f"## {title}", *(f"::: {_HOMES[name]}.{name}" for name in names)]
    return "\n\n".join(parts) + "\n"
