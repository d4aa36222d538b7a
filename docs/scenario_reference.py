"""The page of a scenario's keys, in Markdown, made from its JSON Schema: `python -m docs.scenario_reference` prints it.

The docs build calls `scenario_reference`. A section is an object of the YAML or a kind of a policy, in the order of a
scenario.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from simserve.scenario import scenario_schema

Schema = Mapping[str, Any]

INTRO = """\
# Scenario keys

This page lists all keys of a scenario: type, unit in brackets, default, and meaning. `simserve schema` prints the same
as a JSON Schema for editors, and `simserve explain FILE` shows the values that a scenario leaves to defaults.

A key with a default may be left out; where the default is `null`, the text says what holds instead. Times (keys that
end in `_s`) may be written with a unit, as `500ms` or `15min`, shares as `5%`, and counts as `1,000`; the JSON Schema
knows plain numbers only. A policy is its name, or a mapping with its `kind` and arguments.
"""

SHARED = {
    "Targets": "Latency limits",
    "LognormalSide": "Lognormal numbers",
    "DrawnSeconds": "Distributions of seconds",
}
"""Values of several keys, with their headings at the end of the page."""

MOST_CHOICES = 12
"""Names that are listed; those of models and GPUs are too many, and `simserve catalog` lists them."""


def scenario_reference() -> str:
    """Return the whole page."""
    return "\n".join([INTRO, *_Page(scenario_schema()).lines()])


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and Python-Markdown make it."""
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


class _Page:
    """The sections of a schema; a definition has one, at the first key that holds it, to which all others link."""

    def __init__(self, schema: Schema) -> None:
        self._schema, self._parts = schema, schema["$defs"]
        self._headings = dict(SHARED)
        """Headings by the names of definitions, and of policies by those of their kinds."""

    def lines(self) -> Iterator[str]:
        """Yield the lines of all sections."""
        yield from self._section("Top level", self._schema, "")
        yield "## Values\n"
        for name, heading in SHARED.items():
            yield from self._section(heading, self._parts[name], heading, level=3)

    def _section(self, heading: str, part: Schema, path: str, level: int = 2) -> Iterator[str]:
        """Yield an object: what it is, its keys, and then the sections that no earlier key leads to."""
        yield f"{'#' * level} {heading}\n\n{part['description']}\n"
        keys = part["properties"].items()
        next_level = max(level, 3) if path else 2
        below = [line for key, value in keys for line in self._below(f"{path}.{key}".lstrip("."), value, next_level)]
        items = [self._item(key, value, part.get("required", ())) for key, value in keys if not _is_name(key, value)]
        if items:
            yield "\n".join([*items, ""])
        yield from below

    def _below(self, here: str, value: Schema, level: int) -> Iterator[str]:
        """Yield the sections of the objects that a key holds, unless they have one already."""
        kinds = _kinds(value)
        if kinds and _names(kinds) not in self._headings:
            self._headings[_names(kinds)] = f"`{here}`"
            yield f"{'#' * level} `{here}`\n\n{_choice(value, here)}\n"
            for kind in kinds:
                yield from self._section(f"`{here}: {_names([kind])}`", kind, here, level=4)
        for name, suffix in _references(value):
            if name not in self._headings:
                place = here + suffix
                self._headings[name] = f"`{place}`"
                yield from self._section(f"`{place}`", self._parts[name], place, level)

    def _item(self, key: str, value: Schema, required: list[str]) -> str:
        unit, meaning = re.fullmatch(r"(\[.*?\] )?(.*)", value["description"]).groups("")  # type: ignore[union-attr]
        default = "required" if key in required else _default(value)
        return f"- **`{key}`**: {'; '.join(filter(None, [f'{self._type(value)} {unit}'.strip(), default]))}. {meaning}"

    def _type(self, value: Schema) -> str:
        """Return the type of a value in words, with its range or choices; null is left out, as a default says it."""
        kinds = _kinds(value)
        if kinds:
            return f"one of {_link(self._headings[_names(kinds)])}"
        match value:
            case {"anyOf": choices} | {"oneOf": choices}:
                return ", or ".join(dict.fromkeys(self._type(each) for each in choices if each.get("type") != "null"))
            case {"$ref": _}:
                return _link(self._headings[_name(value)])
            case {"const": only}:
                return f"`{only}`"
            case {"enum": choices}:
                names = ", ".join(f"`{each}`" for each in choices)
                return f"one of {names}" if len(choices) <= MOST_CHOICES else "text"
            case {"prefixItems": items}:
                return f"pair of {_plural(self._type(items[0]))}"
            case {"items": items}:
                return f"list of {_plural(self._type(items))}"
            case {"additionalProperties": each}:
                return f"mapping of names to {_plural(self._type(each))}"
            case {"type": "boolean"}:
                return "true or false"
            case {"type": "integer"}:
                return f"whole number {_range(value)}"
            case {"type": "number"}:
                return f"number {_range(value)}"
        return "text"


def _is_name(key: str, value: Schema) -> bool:
    """Return whether a key is the `kind` that a heading says."""
    return key == "kind" and "const" in value


def _kinds(value: Schema) -> list[Schema]:
    """Return the kinds of a policy: the mappings that name theirs."""
    return [each for each in value.get("anyOf", ()) if "const" in each.get("properties", {}).get("kind", {})]


def _names(kinds: list[Schema]) -> str:
    return " ".join(each["properties"]["kind"]["const"] for each in kinds)


def _choice(value: Schema, here: str) -> str:
    """Return a sentence with the kinds of a policy."""
    names = _names(_kinds(value)).split()
    choices = [", ".join(f"[`{name}`](#{slug(f'{here}: {name}')})" for name in names)]
    if {"type": "string", "pattern": ":"} in value["anyOf"]:
        choices.append("a class of your own: `kind: my_module:MyClass`")
    return f"{', or '.join(choices)}."


def _name(reference: Schema) -> str:
    return str(reference["$ref"]).removeprefix("#/$defs/")


def _link(heading: str) -> str:
    return f"[{heading}](#{slug(heading)})"


def _references(value: Schema) -> Iterator[tuple[str, str]]:
    """Yield the definitions that a value leads to, each with what follows the key in a path."""
    if "$ref" in value:
        yield _name(value), ""
    for each in value.get("anyOf", ()):
        yield from _references(each)
    tags = value.get("discriminator", {}).get("mapping", {})
    for each in value.get("oneOf", ()):
        yield _name(each), f": {', '.join(tag for tag, place in tags.items() if place == each['$ref'])}"
    for key, suffix in (("items", "[]"), ("additionalProperties", ".NAME")):
        if isinstance(value.get(key), Mapping):
            yield from ((name, suffix + more) for name, more in _references(value[key]))


def _default(value: Schema) -> str:
    """Return the default of a value in words; "" for that of a section, which its keys have."""
    match value.get("default", {}):
        case {"kind": kind}:
            return f"default `{kind}`"
        case dict() | list() as default:
            return "" if default else "default none"
        case None:
            return "default `null`"
        case bool() as default:
            return f"default `{str(default).lower()}`"
        case int() | float() as default:
            return f"default `{_number(default).replace(',', '')}`"
        case default:
            return f"default `{default}`"


def _range(value: Schema) -> str:
    bounds = {key: _number(bound) for key, bound in value.items() if "imum" in key.lower()}
    match bounds:
        case {"minimum": least, "maximum": most}:
            return f"from {least} to {most}"
        case {"exclusiveMinimum": least, "maximum": most}:
            return f"above {least}, at most {most}"
        case {"exclusiveMinimum": least}:
            return f"above {least}"
        case {"minimum": least}:
            return f"of at least {least}"
    raise ValueError(f"must have a bound, got {value}")


def _number(number: float) -> str:
    if number == int(number) and abs(number) < 1e9:
        return f"{number:,.0f}"
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{number:g}")


def _plural(kind: str) -> str:
    return re.sub(r"number\b", "numbers", kind, count=1)


if __name__ == "__main__":
    sys.stdout.write(scenario_reference())
