"""Manual of a plug-in: its docstring and its arguments, with types, defaults and meanings."""

import ast
import dataclasses
import inspect
import textwrap
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pydantic import TypeAdapter

from simserve.errors import PolicyError
from simserve.plugins.arguments import fields_of
from simserve.plugins.find import NOUNS, find
from simserve.plugins.validation import ValueProblem


@dataclass(frozen=True)
class Argument:
    """One key of a plug-in's YAML."""

    name: str
    type: str
    is_required: bool
    default: Any
    """Default value; None if required, too."""
    meaning: str


@dataclass(frozen=True)
class Description:
    """Manual page of a plug-in."""

    family: str
    name: str
    text: str
    arguments: tuple[Argument, ...]


def describe(family: str, name: str) -> Description:
    """Describe a plug-in. Raises PolicyError with a did-you-mean for an unknown name."""
    plugin_class = find(family, name)
    if isinstance(plugin_class, ValueProblem):
        raise PolicyError(f"{NOUNS[family]} {name}: {plugin_class}")
    meanings = _meanings(plugin_class)
    types = _types(plugin_class)
    arguments = tuple(
        Argument(
            field.name,
            types.get(field.name, "any"),
            _default(field) is dataclasses.MISSING,
            None if _default(field) is dataclasses.MISSING else _default(field),
            meanings.get(field.name, ""),
        )
        for field in fields_of(plugin_class)
    )
    return Description(family, name, inspect.cleandoc(plugin_class.__doc__ or ""), arguments)


def plugin_schema(plugin_class: type) -> dict[str, Any]:
    """Return the JSON Schema of a plug-in's arguments."""
    if not dataclasses.is_dataclass(plugin_class):
        return {"type": "object", "properties": {}}
    schema = TypeAdapter(plugin_class).json_schema()
    for name, meaning in _meanings(plugin_class).items():
        if name in schema.get("properties", {}):
            schema["properties"][name].setdefault("description", meaning)
    return schema


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, or MISSING."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    default = field.default
    return getattr(default, "default", default)  # pydantic's Field(default=...) wraps it


def _types(plugin_class: type) -> dict[str, str]:
    """Return the type of each argument as its class spells it."""
    annotations = inspect.get_annotations(plugin_class)
    for parent in plugin_class.__mro__[1:-1]:
        annotations = inspect.get_annotations(parent) | annotations
    source = _source(plugin_class)
    written = {
        node.target.id: ast.unparse(node.annotation)
        for node in (source.body if source else [])
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return {name: written.get(name, str(annotation)) for name, annotation in annotations.items()}


def _meanings(plugin_class: type) -> dict[str, str]:
    """Return the docstring under each field, if the source is available."""
    source = _source(plugin_class)
    body = source.body if source else []
    meanings = {}
    for field, below in pairwise(body):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            meanings[field.target.id] = inspect.cleandoc(below.value.value)
    return meanings


def _source(plugin_class: type) -> ast.ClassDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(plugin_class)))
    except (OSError, TypeError, SyntaxError):
        return None
    return next((node for node in tree.body if isinstance(node, ast.ClassDef)), None)
