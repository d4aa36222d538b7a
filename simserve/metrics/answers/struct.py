"""Struct: a frozen record of an answer; each field carries a title, a unit and a form."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WrapValidator

from simserve.metrics import summary_schema
from simserve.metrics.decision_json import Ratio as Capped
from simserve.tables.schema import Field as TableField
from simserve.tables.schema import Kind

if TYPE_CHECKING:
    from simserve.tables.columns import Columns

Form = Literal["text", "sentence", "flag", "count", "amount", "whole", "share", "seconds", "usd", "ratio"]
"""How a value reads; whole is an amount without decimals."""


@dataclass(frozen=True)
class Column:
    """What a field of a struct is in tables; its title, if it has one of its own, is that of pydantic's `Field`."""

    form: Form
    kind: Kind
    unit: str = ""
    """Unit in files of tables."""


def _plain(value: Any) -> Any:
    from simserve.tables.files import plain  # late: numpy

    return plain(value)


FINITE = BeforeValidator(_plain)
"""Nothing in place of NaN and infinity, which JSON does not have."""


def _as_given(value: Any, check: Callable[[Any], Any]) -> Any:
    check(value)
    return value


AS_GIVEN = WrapValidator(_as_given)
"""A whole number stays one where others are not whole."""

Text = Annotated[str | None, Column("text", "category")]
Flag = Annotated[bool | None, Column("flag", "flag")]
Count = Annotated[summary_schema.Count | None, Column("count", "replica")]
Gpus = Annotated[summary_schema.Count | None, Column("count", "replica", "GPUs")]
Replicas = Annotated[summary_schema.Count | None, Column("count", "replica", "replicas")]
Seeds = Annotated[summary_schema.Count | None, Column("count", "replica", "seeds")]
Months = Annotated[summary_schema.Count | None, Column("count", "replica", "months")]
Amount = Annotated[summary_schema.Measured, FINITE, Column("amount", "float")]
Signed = Annotated[summary_schema.Signed, FINITE, Column("amount", "float")]
Share = Annotated[summary_schema.Share | None, FINITE, Column("share", "float", "share 0..1")]
Seconds = Annotated[summary_schema.Measured, FINITE, Column("seconds", "float", "s")]
PerS = Annotated[summary_schema.Measured, FINITE, Column("amount", "float", "requests/s")]
Usd = Annotated[summary_schema.Measured, FINITE, Column("usd", "float", "USD")]
WholeUsd = Annotated[summary_schema.Measured, FINITE, Column("whole", "float", "USD")]
UsdPerHour = Annotated[summary_schema.Measured, FINITE, Column("usd", "float", "USD/h")]
UsdPerMTokens = Annotated[summary_schema.Signed, FINITE, Column("usd", "float", "USD per million tokens")]
Kwh = Annotated[summary_schema.Measured, FINITE, Column("whole", "float", "kWh")]
Tokens = Annotated[summary_schema.Measured, FINITE, Column("whole", "float", "tokens")]
Ratio = Annotated[Capped | None, FINITE, Column("ratio", "float")]


class Struct(BaseModel):
    """A frozen record; keys of a later version are ignored, and None stands for what is not known."""

    # deferred, as most commands read no answer back; by name, where a key of the file is no term of the field
    model_config = ConfigDict(frozen=True, defer_build=True, populate_by_name=True)

    def facts(self) -> dict[str, Any]:
        """Return the struct as JSON has it."""
        result: dict[str, Any] = _plain(self.model_dump(by_alias=True))
        return result


def column_of(struct: type[Struct], name: str) -> Column | None:
    """Return the column of a field; None for one that no table shows."""
    return {type(each): each for each in struct.model_fields[name].metadata}.get(Column)


def fields_of(struct: type[Struct]) -> tuple[TableField, ...]:
    """Return the columns of a table with a row for each struct."""
    columns = [(field.alias or name, column_of(struct, name)) for name, field in struct.model_fields.items()]
    return tuple(TableField(key, column.kind, column.unit) for key, column in columns if column is not None)


def table_of(struct: type[Struct], rows: Sequence[Struct]) -> "Columns":
    """Return structs as the columns of a table, `(n_rows,)` each."""
    from simserve.tables.columns import typed_columns  # late: numpy

    keys = {name: field.alias or name for name, field in struct.model_fields.items()}
    return typed_columns(fields_of(struct), [{keys[name]: cell for name, cell in row} for row in rows])


def titled(title: str) -> Any:
    """Return a field of that title, None where it is not given."""
    return Field(None, title=title)
