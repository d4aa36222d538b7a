"""Read YAML 1.2 as plain data with the line of every value."""

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import yaml

from simserve.plugins.validation import Path, ValueProblem

MOST_NODES = 100_000
"""Limit on the values of a document, aliases expanded; a scenario has a few dozen."""

MOST_LEVELS = 50
"""Limit on lists and mappings inside each other; a scenario has fewer than ten."""

MOST_DIGITS = 400

NULL, BOOL, INT, FLOAT, TEXT = (f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str"))


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Resolves plain scalars by the core schema of YAML 1.2 (section 10.3.2): `on` and `yes` are text, 1e-6 is not."""

    yaml_implicit_resolvers: dict[str, Any] = {}


for _tag, _pattern, _first in (
    (NULL, r"~|null|Null|NULL|", "~nN"),
    (BOOL, r"true|True|TRUE|false|False|FALSE", "tTfF"),
    (INT, r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        FLOAT,
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
):
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), [*_first] + ([""] if _tag == NULL else []))


@dataclass
class YamlDocument:
    """The data of a YAML text, the line of each value, and its problems."""

    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    """The line of each key or list item, counted from 1."""
    problems: list[tuple[ValueProblem, int]] = field(default_factory=list)
    """Duplicate keys, tags and whatever else a scenario may not contain, with their lines."""


class NotYaml(Exception):
    """A text that is not YAML."""

    def __init__(self, rule: str, line: int | None) -> None:
        super().__init__(rule)
        self.rule = rule
        self.line = line


def read_yaml(text: str) -> YamlDocument:
    """Read the single document of a text. Raises NotYaml."""
    (document,) = _documents(text, lambda loader: [loader.get_single_node()])
    return document


def read_documents(text: str) -> list[YamlDocument]:
    """Read all documents of a text. Raises NotYaml."""
    return _documents(text, lambda loader: iter(lambda: loader.get_node() if loader.check_node() else None, None))


def _documents(text: str, roots_of: Callable[[Any], Iterable[yaml.Node | None]]) -> list[YamlDocument]:
    """Read the documents with these roots; None is an empty one."""
    try:
        _check_size(text)
        loader = _Loader(text)
        try:
            return [_Reader(YamlDocument()).document(root) for root in roots_of(loader)]
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        is_begun = str(error.problem).startswith(("could not find expected ':'", "did not find expected ',"))
        mark = (is_begun and error.context_mark) or error.problem_mark or error.context_mark
        raise NotYaml(_what_is_wrong(text, error, mark), mark.line + 1 if mark else None) from error
    except yaml.YAMLError as error:
        raise NotYaml(f"is not YAML: {' '.join(str(error).split())}", None) from error


YAML_REMEDIES = {
    "expected ':'": "write `key: value`, with a space after the colon",
    "expected ',' or": "close the bracket that is opened here",
    "expected key": "indent as the lines above, and close the quotes and brackets in them",
    "'-' indicator": "indent as the lines above",
    "mapping values are not allowed": "indent as the lines above, or quote a text with a colon",
}
"""What to do about a parser's complaints, by their words."""


def _what_is_wrong(text: str, error: yaml.MarkedYAMLError, mark: yaml.Mark | None) -> str:
    """Say what is wrong in a line; a parser calls a tab a character that starts no token."""
    line = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "is indented by a tab, which YAML does not allow; use spaces"
    wrong = error.problem or error.context or ""
    remedy = next((remedy for part, remedy in YAML_REMEDIES.items() if part in wrong), None)
    return f"is not YAML: {wrong}" + (f"; {remedy}" if remedy else "")


def _check_size(text: str) -> None:
    """Raise NotYaml for more values or levels than allowed, before libyaml composes them, which is recursive."""
    n_values = n_levels = 0
    for event in yaml.parse(text, Loader=_Loader):
        n_values += isinstance(event, yaml.NodeEvent)
        n_levels += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if n_levels > MOST_LEVELS or n_values > 2 * MOST_NODES:  # a value and its key
            line = event.start_mark.line + 1 if event.start_mark else None
            raise _too_deep(line) if n_levels > MOST_LEVELS else _too_large(line)


def _too_deep(line: int | None) -> NotYaml:
    return NotYaml(f"must have at most {MOST_LEVELS} levels of lists and mappings; is a bracket left open?", line)


def _too_large(line: int | None) -> NotYaml:
    return NotYaml(f"must have at most {MOST_NODES:,} values; move long lists into a file", line)


def scalar(text: str) -> Any:
    """Parse a plain scalar as a file would."""
    return read_yaml(text).data


class _Reader:
    """Reads the nodes of a document in one pass."""

    def __init__(self, document: YamlDocument) -> None:
        self._document = document
        self._open: set[int] = set()
        self._n_nodes = 0

    def document(self, root: yaml.Node | None) -> YamlDocument:
        """Return the document with its root read."""
        if root is not None:
            self._document.lines[()] = root.start_mark.line + 1
            self._document.data = self.read(root, ())
        return self._document

    def read(self, node: yaml.Node, path: Path) -> Any:
        """Return the node's data; record lines and problems."""
        self._n_nodes += 1
        line = node.start_mark.line + 1
        if id(node) in self._open:
            raise NotYaml("is not a tree: an alias contains itself", line)
        if self._n_nodes > MOST_NODES:
            raise _too_large(line)
        if len(path) > MOST_LEVELS:  # aliases inside each other
            raise _too_deep(line)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return self._sequence(node, path)
            return self._scalar(node, path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        self._refuse_tag(node, path, "tag:yaml.org,2002:map")
        data: dict[str, Any] = {}
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(path, "keys must be plain text", line)
                continue
            key = key_node.value
            here = (*path, key)
            if key == "<<" and not key_node.style:
                self._problem(here, "merge keys are of YAML 1.1, and are not read", line, "repeat the merged keys here")
                continue
            if key in data:
                self._problem(here, f"is given twice, first on line {first_lines[key]}", line, "keep one of them")
                continue
            first_lines[key] = self._document.lines[here] = line
            data[key] = self.read(value_node, here)
        return data

    def _sequence(self, node: yaml.SequenceNode, path: Path) -> list[Any]:
        self._refuse_tag(node, path, "tag:yaml.org,2002:seq")
        data = []
        for index, item in enumerate(node.value):
            self._document.lines[*path, index] = item.start_mark.line + 1
            data.append(self.read(item, (*path, index)))
        return data

    def _scalar(self, node: yaml.Node, path: Path) -> Hashable:
        text, tag = str(node.value), node.tag
        if tag == NULL:
            return None
        if tag == BOOL:
            return text.lower() == "true"
        if tag == INT:
            if len(text) > MOST_DIGITS:
                raise NotYaml(f"has a number of {len(text)} digits", node.start_mark.line + 1)
            return _whole_number(text)
        if tag == FLOAT:
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        self._refuse_tag(node, path, TEXT)
        return text

    def _refuse_tag(self, node: yaml.Node, path: Path, plain: str) -> None:
        if node.tag not in (plain, "!"):
            self._problem(path, f"a scenario has no tags such as {node.tag}", node.start_mark.line + 1, "leave it out")

    def _problem(self, path: Path, rule: str, line: int, remedy: str | None = None) -> None:
        self._document.problems.append((ValueProblem(path, rule, None, remedy), line))


def _whole_number(text: str) -> int:
    """Parse 0o17 and 0x1F by their prefix; 010 is ten in YAML 1.2."""
    digits = text.lstrip("+-").lower()
    base = {"0x": 16, "0o": 8}.get(digits[:2], 10)
    return int(text, base) if base != 10 else int(text)
