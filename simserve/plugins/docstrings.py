"""Docstrings of YAML keys: what a class's source says of its fields, for manuals, the JSON Schema and the docs.

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
    """Return the fields of a class and of its parents, as far as their sources are available."""
    fields: dict[str, SourceField] = {}
    for parent in reversed(of.__mro__):
        for field, below in pairwise([*_body(parent), ast.Pass()]):
            match field, below:
                case ast.AnnAssign(ast.Name(name), type_), ast.Expr(ast.Constant(str(text))):
                    fields[name] = SourceField(ast.unparse(type_), " ".join(text.split()))
                case ast.AnnAssign(ast.Name(name), type_), _:
                    fields[name] = SourceField(ast.unparse(type_))
    return fields


def describe_keys(schema: dict[str, Any], of: type) -> dict[str, Any]:
    """Give the keys of an object's schema the docstrings of a class, and the object the first sentence of its own."""
    fields = source_fields(of)
    for key, value in schema.get("properties", {}).items():
        field = fields.get(key) or fields.get(f"{key}_")  # `schema_` stands for a name that pydantic has
        if field is not None and field.meaning:
            value["description"] = field.meaning
    schema["description"] = re.split(r"(?<=\.)\s+(?=[A-Z`])", " ".join((of.__doc__ or "").split()))[0]
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
