"""Problems inside a mapping, in plain words: translates pydantic's errors and suggests near names."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import ValidationError

from simserve.errors import closest as closest
from simserve.errors import did_you_mean as did_you_mean

Path = tuple[str | int, ...]
"""The keys and list indexes that lead to a value."""

Kind = Literal["value", "missing", "unknown"]

MOST_SHOWN = 60
"""Maximum characters of a value in a message."""

UNKNOWN_KEY = "unknown key"

RULES = {
    **dict.fromkeys(("missing", "missing_argument"), "is missing"),
    **dict.fromkeys(("extra_forbidden", "unexpected_keyword_argument"), UNKNOWN_KEY),
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    "string_type": "must be text",
    "bool_type": "must be true or false",
    **dict.fromkeys(("list_type", "tuple_type"), "must be a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type", "dataclass_type"), "must be a mapping"),
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "finite_number": "must be a finite number",
    "literal_error": "must be {expected}",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_short": "must not be empty",
    "union_tag_not_found": "must have {discriminator}",
    "union_tag_invalid": "must have one of {expected_tags} as {discriminator}",
    "value_error": "{error}",
    "assertion_error": "{error}",
}
"""Rules for pydantic's error types; other types keep pydantic's sentence."""

AUTHORED = ("value_error", "assertion_error")
"""Error types with simserve's own words instead of pydantic's."""

FOLLOWING = ("literal_error", "too_short")
"""Error types that may follow from others inside the value."""

KINDS: Mapping[str, Kind] = {
    "missing": "missing",
    "missing_argument": "missing",
    "extra_forbidden": "unknown",
    "unexpected_keyword_argument": "unknown",
}


@dataclass(frozen=True)
class ValueProblem:
    """A problem before its place in a file is known: its keys, the rule, the value and the remedy."""

    path: Path
    rule: str
    value: str | None = None
    remedy: str | None = None
    kind: Kind = "value"
    is_conflict: bool = False
    """See Problem."""

    def below(self, path: Path) -> "ValueProblem":
        """Return the problem with its path extended upward."""
        return replace(self, path=(*path, *self.path))

    def __str__(self) -> str:
        where = f"{dotted(self.path)}: " if self.path else ""
        got = f", got {self.value}" if self.value is not None else ""
        return f"{where}{self.rule}{got}" + (f"; {self.remedy}" if self.remedy else "")


def problems_of(error: ValidationError, data: object) -> list[ValueProblem]:
    """Return pydantic's errors in `data`, one problem per place. For a union type, pydantic reports the errors of each
    member: the deepest ones belong to the type that the user meant; errors at one place are joined by "or"."""
    by_path: dict[Path, list[Any]] = {}
    for finding in error.errors(include_url=False):
        by_path.setdefault(_path_in(data, finding["loc"]), []).append(finding)
    outer = {path[:n_keys] for path in by_path for n_keys in range(len(path))}
    meant = {path: those for path, those in by_path.items() if not (path in outer and _may_follow(those))}
    return [_problem(path, those) for path, those in meant.items()]


def infinities(data: object, path: Path = ()) -> list[ValueProblem]:
    """Return a problem for every number in `data` that is not finite."""
    if isinstance(data, float) and not math.isfinite(data):
        return [ValueProblem(path, "must be a finite number", shown(data))]
    if isinstance(data, Mapping):
        return [problem for key, value in data.items() for problem in infinities(value, (*path, key))]
    if isinstance(data, Sequence) and not isinstance(data, str):
        return [problem for index, value in enumerate(data) for problem in infinities(value, (*path, index))]
    return []


def as_json(data: object) -> str:
    """Return data as JSON for pydantic's strict mode, which does not take "8" for 8; 1e5 counts as a whole number."""
    return json.dumps(_exact(data), default=repr)


def shown(value: object) -> str:
    """Return a value as a message quotes it: in YAML spelling, and short."""
    if value is None:
        return "nothing"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}infinity"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    text = json.dumps(value, default=repr, ensure_ascii=False)
    if isinstance(value, str):
        text = f"'{value}'"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def dotted(path: Path) -> str:
    """Return a path as a user writes it: cluster.pools.0.name."""
    return ".".join(map(str, path))


def _path_in(data: object, loc: tuple[int | str, ...]) -> Path:
    """Return pydantic's location without the names of union members, which no user's file contains."""
    path: list[str | int] = []
    for index, item in enumerate(loc):
        is_last = index == len(loc) - 1
        if _holds(data, item):
            data = data[item]  # type: ignore[index]
        elif not (is_last and _could_hold(data, item)):
            continue
        path.append(item)
    return tuple(path)


def _holds(data: object, item: int | str) -> bool:
    """Return whether `data[item]` exists."""
    if isinstance(item, int):
        return isinstance(data, list | tuple) and item < len(data)
    return isinstance(data, Mapping) and item in data


def _could_hold(data: object, item: int | str) -> bool:
    """Return whether `item` is a key missing in `data`, rather than the name of a type."""
    if isinstance(item, int):
        return isinstance(data, list | tuple)
    return isinstance(data, Mapping) and item.isidentifier()


def _may_follow(findings: list[Any]) -> bool:
    """Return whether all errors are "wrong type" (or "too short", which ignores items), as others inside cause them."""
    return all(finding["type"].endswith("_type") or finding["type"] in FOLLOWING for finding in findings)


def _problem(path: Path, findings: list[Any]) -> ValueProblem:
    # A broken rule of simserve implies the right type, so errors about other types do not help.
    findings = [finding for finding in findings if finding["type"] in AUTHORED] or findings
    first = findings[0]
    kind: Kind = KINDS.get(first["type"], "value")
    rules = list(dict.fromkeys(_rule(finding) for finding in findings))
    rule = " or ".join([rules[0], *(other.removeprefix("must be ") for other in rules[1:])])
    if kind != "value":
        return ValueProblem(path, rule, kind=kind)
    return ValueProblem(path, rule, None if first["type"] in AUTHORED else shown(first["input"]), _remedy(findings))


def _rule(finding: Mapping[str, Any]) -> str:
    context = finding.get("ctx", {})
    if finding["type"] == "literal_error" and " or " in context["expected"]:
        return "must be one of {}".format(context["expected"].replace("'", ""))
    if finding["type"] in RULES:
        plain = {key: shown(value) if isinstance(value, float) else value for key, value in context.items()}
        if "discriminator" in plain:  # its name in files is the last
            plain["discriminator"] = plain["discriminator"].rpartition(" | ")[2]
        return RULES[finding["type"]].format(**plain)
    message: str = finding["msg"]
    return message.replace("Input should be", "must be").replace("Input should", "must")


def _remedy(findings: list[Any]) -> str | None:
    value = findings[0]["input"]
    if not isinstance(value, str):
        return None
    if "number" in _rule(findings[0]) and re.fullmatch(r"[-+]?[\d_]*\.?[\d_]+([eE][-+]?\d+)?", value):
        return f"write {value.replace('_', '')}, without quotes or underscores"
    choices = re.findall(r"'([^']*)'", " ".join(str(finding.get("ctx", {}).get("expected")) for finding in findings))
    near = closest(value, choices)
    return f"did you mean {near}?" if near else None


def _exact(data: object) -> object:
    """Return the data with 1e5 as a whole number."""
    if isinstance(data, float) and data.is_integer() and abs(data) < 2**53:
        return int(data)
    if isinstance(data, Mapping):
        return {key: _exact(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_exact(value) for value in data]
    return data
