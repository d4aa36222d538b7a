"""The page of all that simserve writes, in Markdown: `python -m docs.outputs_reference` prints it.

It is made from docstrings; the docs build calls `outputs_reference`. A section is a parquet table, a JSON file, or an
object in one.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby, pairwise
from types import ModuleType
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from docs.scenario_reference import slug
from simserve.metrics.answers.autoscale import ScaledFleet
from simserve.metrics.answers.baseline import Baseline
from simserve.metrics.answers.plan_option import PlanOption
from simserve.metrics.answers.resilience import SpareOption
from simserve.metrics.answers.struct import Struct, fields_of
from simserve.metrics.answers.sweep import PointOfSweep
from simserve.metrics.answers.sweep_runs import FinishedRun
from simserve.metrics.answers.tune import TriedPoint
from simserve.metrics.answers.twin import ServerSetting
from simserve.metrics.result_folder import ANSWERS
from simserve.plugins.docstrings import DescribedSchema, source_fields
from simserve.study.capacity import capacity_result
from simserve.tables import schema
from simserve.tables.fields import Field

Schema = Mapping[str, Any]

INTRO = """\
# Tables and files

This page lists all columns of the tables and all keys of the JSON files: type, unit in brackets, and meaning. [What
a run writes](../outputs.md) says which command writes which file, and how numbers are defined.

Times are seconds from the start of the run; shares are 0 to 1. A column of a run's tables is null only where its text
says so, that of a study also where a row has no such value. A key may be null if its type says so. Later versions only
add columns and keys.
"""

TYPES = {
    "float": "double",
    "int32": "int32",
    "int64": "int64",
    "replica": "int32",
    "flag": "bool",
    "category": "dictionary",
    "text": "string",
    "id": "int64 or string",
}
"""Arrow types of the kinds of columns; a dictionary is text with few distinct values."""

ROWS: Mapping[str, tuple[type[Struct], str]] = {
    "sweep": (FinishedRun, "One row per point and seed, ordered by point and then by seed; a failed run has nulls."),
    "plan": (
        PlanOption,
        "One row per option, as `options` of plan.json: the best first, those that miss the SLO last.",
    ),
    "twin": (ServerSetting, "One row per flag, as `settings` of twin.json."),
    "tune": (TriedPoint, "One row per point, as `points` of tune.json."),
    "autoscale": (ScaledFleet, "One row per policy, as `policies` of autoscale.json."),
    "resilience": (SpareOption, "One row per number and kind of spares, as `options` of resilience.json."),
}
"""Tables of studies with a struct for each row, and what a row is."""

SHARED = {
    "LatencyJson": "Statistics of a latency",
    "TimePartsJson": "Parts of a latency",
    "DecisionJson": "Decision",
    "NominalLoad": "Nominal load",
    "DrawnLoad": "Drawn load",
    "NearCapacityJson": "Load near capacity",
    "ProbedLoad": "Probed load",
    "FoundLoad": "Found load",
    "Bounded": "Number with an interval",
    "Interval": "Mean with an interval",
    "StudiedPool": "Studied pool",
    "StudiedFleet": "Studied fleet",
    "ScenarioName": "Studied scenario",
}
"""Values of several keys, with their headings at the end of the page."""

OTHERS = {"NoDecision": "where load does not decide"}
"""Objects that a key holds instead of another."""


class Column(NamedTuple):
    """A column of a table, or several with one meaning."""

    names: Sequence[str]
    type: str
    unit: str
    meaning: str


class Table(NamedTuple):
    """A parquet table."""

    name: str
    about: str
    columns: Sequence[Column]


def outputs_reference() -> str:
    """Return the whole page."""
    page = _Page([*((name, answer) for name, answer in ANSWERS.values()), ("Baseline", Baseline)])
    return "\n".join([INTRO, "## Tables\n", *map(_section_of, tables()), *page.lines()])


def tables() -> Iterator[Table]:
    """Yield all tables."""
    for name, fields in (schema.TABLES | schema.MORE_TABLES).items():
        yield _declared(name, schema, name.upper(), fields)
    yield _declared("capacity", capacity_result, "ROWS", capacity_result.ROWS)
    for name, (struct, about) in ROWS.items():
        columns = [*_of_point(), *_columns_of(struct)] if name == "sweep" else _columns_of(struct)
        yield Table(name, about, columns)


def meanings(text: str, names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return what a table's docstring says of a row, and of each column by name.

    The text begins with paragraphs; then each line is `names: Meaning.`, further lines of it are indented, and * in a
    name stands for anything. Raises ValueError for a line of another form, and for a column without just one meaning.
    """
    about, _, lines = inspect.cleandoc(text).rpartition("\n\n")
    result: dict[str, str] = {}
    for line in re.sub(r"\n {4}", " ", lines).splitlines():
        match = re.fullmatch(r"([\w.*]+(?:, [\w.*]+)*): ([A-Z0-9`].*\.)", line)
        if match is None:
            raise ValueError(f"must be of the form 'names: Meaning.', got {line!r}")
        for pattern in match[1].split(", "):
            known = [name for name in names if fnmatchcase(name, pattern)]
            twice = [name for name in known if name in result]
            if twice or not known:
                raise ValueError(f"{pattern}: must be columns with no other meaning, got {twice or 'none'}")
            result |= dict.fromkeys(known, match[2])
    missing = [name for name in names if name not in result]
    if missing:
        raise ValueError(f"must have a meaning of {', '.join(missing)}")
    return about, result


def _declared(name: str, module: ModuleType, constant: str, fields: Sequence[Field]) -> Table:
    """Return a table with the docstring after its constant."""
    (text,) = (
        below.value.value
        for node, below in pairwise(ast.parse(inspect.getsource(module)).body)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == constant
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    )
    about, known = meanings(str(text), [field.name for field in fields])
    return Table(name, about, _grouped(fields, known))


def _columns_of(struct: type[Struct]) -> list[Column]:
    """Return the columns of a table with a struct for each row."""
    names = {each.alias or name: name for name, each in struct.model_fields.items()}
    fields, texts = fields_of(struct), source_fields(struct)
    return _grouped(fields, {each.name: _unit_and_meaning(texts[names[each.name]].meaning)[1] for each in fields})


def _of_point() -> list[Column]:
    """Return the columns of a sweep that say which point a row is of."""
    texts = source_fields(PointOfSweep)
    return [
        Column(["point"], TYPES["int64"], "", texts["point"].meaning),
        Column(["KEY"], "double, int64, bool or dictionary", "", f"{texts['values'].meaning} Null where one does."),
    ]


def _grouped(fields: Sequence[Field], known: Mapping[str, str]) -> list[Column]:
    """Return neighbors with one meaning, type and unit together."""
    keyed = groupby(fields, key=lambda field: (TYPES[field.kind], field.unit.removesuffix(" 0..1"), known[field.name]))
    return [Column([field.name for field in group], *key) for key, group in keyed]


def _section_of(table: Table) -> str:
    items = [_item(each.names, f"{each.type} {_bracketed(each.unit)}".strip(), each.meaning) for each in table.columns]
    return "\n".join([f"### {table.name}.parquet\n\n{table.about}\n", *items, ""])


def _item(names: Sequence[str], type_: str, meaning: str) -> str:
    text = re.sub(r"\bdocs/([\w-]+\.md)(#[\w-]+)?", r"[\1](../\1\2)", meaning)
    return f"- {', '.join(f'**`{name}`**' for name in names)}: {type_}. {text}"


def _bracketed(unit: str) -> str:
    return f"[{unit}]" if unit else ""


def _unit_and_meaning(text: str) -> tuple[str, str]:
    unit, meaning = re.fullmatch(r"(?:\[(.*?)\] )?(.*)", text).groups("")  # type: ignore[union-attr]
    return unit, meaning


class _Page:
    """The sections of JSON files; a definition has one, at the first key that holds it, to which all others link."""

    def __init__(self, files: Sequence[tuple[str, Any]]) -> None:
        self._files = [
            (name, TypeAdapter(answer).json_schema(schema_generator=DescribedSchema)) for name, answer in files
        ]
        self._parts: dict[str, Schema] = {}
        for name, file in self._files:
            for part, value in file.pop("$defs", {}).items():
                if self._parts.setdefault(part, value) != value:
                    raise ValueError(f"{name}: {part} must be as in the other files")
        kinds = ((name, file.get("discriminator", {}).get("mapping", {})) for name, file in self._files)
        self._headings = SHARED | {_name(each): name for name, mapping in kinds for each in mapping.values()}
        """Headings by the names of definitions; the kinds of a file have its own."""

    def lines(self) -> Iterator[str]:
        """Yield the lines of all sections."""
        yield "## JSON files\n"
        for name, file in self._files:
            kinds = file.get("discriminator", {}).get("mapping", {})
            about = file["description"] if not kinds else "The answer to one of four questions; `asked` says which."
            variants = {kind: self._parts[_name(reference)] for kind, reference in kinds.items()} or {"": file}
            yield f"### {name}\n\n{about}\n"
            yield from self._keys(variants, f"{name}: ")
        yield "## Values\n"
        for part, heading in SHARED.items():
            yield from self._section(part, heading, 3)

    def _section(self, part: str, heading: str, level: int = 4) -> Iterator[str]:
        """Yield an object: what it is, its keys, and then the sections that no earlier key leads to."""
        yield f"{'#' * level} {heading}\n\n{self._parts[part]['description']}\n"
        yield from self._keys({"": self._parts[part]}, f"{heading.strip('`')}." if level == 4 else f"{heading}: ")

    def _keys(self, variants: Mapping[str, Schema], place: str) -> Iterator[str]:
        """Yield the keys of an object, or of several kinds of it, and then the sections below."""
        known: dict[str, dict[str, tuple[Schema, list[str]]]] = {}
        for kind, variant in variants.items():
            for key, value in variant["properties"].items():
                known.setdefault(key, {}).setdefault(repr(value), (value, []))[1].append(kind)
        below = [
            line
            for key, values in known.items()
            for value, kinds in values.values()
            for line in self._below(value, f"{place}{key}", "" if len(values) == 1 else f" of {' and '.join(kinds)}")
        ]
        for key, values in known.items():
            constant = [value["const"] for value, _ in values.values() if "const" in value]
            if len(values) == len(constant) > 1:  # the key that tells the kinds apart
                one = {"enum": constant, "description": next(iter(values.values()))[0]["description"]}
                values = {"": (one, list(variants))}
            for value, kinds in values.values():
                asked = " or ".join(f"`{kind}`" for kind in kinds)
                only = "" if len(kinds) == len(variants) else f" Only if `asked` is {asked}."
                unit, meaning = _unit_and_meaning(value["description"])
                yield _item([key], self._type(value, unit), meaning + only)
        yield ""
        yield from below

    def _below(self, value: Schema, place: str, suffix: str) -> Iterator[str]:
        """Yield the sections of the objects that a value holds, unless they have one already."""
        for part, path in _references(value):
            if part not in self._headings:
                self._headings[part] = f"`{place}{path}`{suffix}{f' {OTHERS[part]}' if part in OTHERS else ''}"
                yield from self._section(part, self._headings[part])

    def _type(self, value: Schema, unit: str = "") -> str:
        """Return the type of a value in words, with its unit."""
        choices = value.get("anyOf", value.get("oneOf", [value]))
        types = dict.fromkeys(self._one_type(each) for each in choices if each.get("type") != "null")
        ends = ["null"] if {"type": "null"} in choices or value.get("type") == "null" else []
        return ", or ".join([f"{', or '.join(types)} {_bracketed(unit)}".strip(), *ends] if types else ends)

    def _types(self, value: Schema) -> str:
        """Return the type of the items of a list or a mapping."""
        return re.sub(r"number\b", "numbers", self._type(value).replace(", or null", " or null"), count=1).replace(
            " or null or null", " or null"
        )

    def _one_type(self, value: Schema) -> str:
        match value:
            case {"$ref": _}:
                heading = self._headings[_name(value["$ref"])]
                return f"[{heading}](#{slug(heading)})"
            case {"const": only}:
                return f"`{only}`"
            case {"enum": choices}:
                return f"one of {', '.join(f'`{each}`' for each in choices)}"
            case {"prefixItems": [item, *_]}:
                return f"pair of {self._types(item)}"
            case {"items": item, "minItems": 2, "maxItems": 2}:
                return f"pair of {self._types(item)}"
            case {"items": item}:
                return f"list of {self._types(item)}"
            case {"additionalProperties": Mapping() as each}:
                return f"mapping of names to {self._types(each)}"
            case {"type": "object"}:
                return "mapping"
            case {"type": "array"}:
                return "list"
            case {"type": "boolean"}:
                return "true or false"
            case {"type": "integer"}:
                return "whole number"
            case {"type": "number"}:
                return "number"
            case {"type": "string"}:
                return "text"
        return "anything"


def _name(reference: str) -> str:
    return reference.removeprefix("#/$defs/")


def _references(value: Schema) -> Iterator[tuple[str, str]]:
    """Yield the definitions that a value leads to, each with what follows the key in a path."""
    if "$ref" in value:
        yield _name(value["$ref"]), ""
    for each in (*value.get("anyOf", ()), *value.get("oneOf", ())):
        yield from _references(each)
    for each in value.get("prefixItems", ()):
        yield from ((name, f"[]{more}") for name, more in _references(each))
    for key, suffix in (("items", "[]"), ("additionalProperties", ".NAME")):
        if isinstance(value.get(key), Mapping):
            yield from ((name, suffix + more) for name, more in _references(value[key]))


if __name__ == "__main__":
    sys.stdout.write(outputs_reference())
