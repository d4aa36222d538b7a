"""Docstrings of keys: what a class's source says of its fields, for manuals, JSON Schemas and the docs.

Sources are read when one of these is asked for, never at import.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from pydantic.json_schema import GenerateJsonSchema


class SourceField(NamedTuple):
    """A field as its class spells it."""

    type: str
    meaning: str = ""
    """The docstring under it, on one line."""


@cache
def source_fields(of: type) -> Mapping[str, SourceField]:
    """Return the fields of a class and of its parents, as far as their sources are available. A field that a class
    declares again, as for a narrower type, keeps its meaning unless it has one there."""
    fields: dict[str, SourceField] = {}
    for parent in reversed(of.__mro__):
        for field, below in pairwise([*_body(parent), ast.Pass()]):
            match field, below:
                case ast.AnnAssign(ast.Name(name), type_), ast.Expr(ast.Constant(str(text))):
                    fields[name] = SourceField(ast.unparse(type_), " ".join(text.split()))
                case ast.AnnAssign(ast.Name(name), type_), _:
                    fields[name] = fields.get(name, SourceField(""))._replace(type=ast.unparse(type_))
    return fields


def describe_keys(schema: dict[str, Any], of: type) -> dict[str, Any]:
    """Give the keys of an object's schema the docstrings of a class, and the object the first sentence of its own."""
    keys, declared = schema.get("properties", {}), getattr(of, "model_fields", {})
    for name, field in source_fields(of).items():
        key = getattr(declared.get(name), "alias", None) or name
        if field.meaning and key in keys:
            keys[key]["description"] = field.meaning
    schema["description"] = re.split(r"(?<=\.)\s+(?=[A-Z`])", " ".join((inspect.getdoc(of) or "").split()))[0]
    return schema


class DescribedSchema(GenerateJsonSchema):
    """JSON Schema with the docstrings of all classes and of their fields."""

    def model_schema(self, schema: Any) -> dict[str, Any]:
        """Return the schema of a pydantic model."""
        return describe_keys(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        """Return the schema of a dataclass."""
        return describe_keys(super().dataclass_schema(schema), schema["cls"])


def _body(of: type) -> list[ast.stmt]:
    """Return the statements of a class; none where its source is not available."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(of))).body
    except (OSError, TypeError, SyntaxError):
        return []
    return tree.body if isinstance(tree, ast.ClassDef) else []
