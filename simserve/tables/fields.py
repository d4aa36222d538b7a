"""Fields: columns of a table, with their kinds and units, and the lines that declare them."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["float", "int32", "int64", "replica", "flag", "category", "text", "id", "lists"]
"""Storage of a column.

float: NaN is null. replica: int32, -1 is null. text: "" is null. category: few distinct strings, written as a
dictionary. id: integers, or strings if the load has them. lists: lists of integers, only in traces. A column without
data is None in memory and all null in the file.
"""


@dataclass(frozen=True)
class Field:
    """One column."""

    name: str
    kind: Kind
    unit: str = ""
    is_optional: bool = True
    """Rows may be without a value."""


def fields_from(text: str) -> tuple[Field, ...]:
    """Return columns from lines of `kind unit: names`; the unit may be left out, and a ? marks optional values."""
    fields: list[Field] = []
    for line in text.strip().splitlines():
        what, names = line.split(":")
        kind, _, unit = what.strip().partition(" ")
        plain, is_optional = kind.removesuffix("?"), kind.endswith("?")
        fields += [Field(name, plain, unit.strip(), is_optional) for name in names.split()]  # type: ignore[arg-type]
    return tuple(fields)
