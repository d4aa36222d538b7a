"""Struct: a frozen record of an answer; each field carries a title, a unit and a form."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, PrivateAttr, ValidationInfo, WrapValidator, model_validator

from simserve.errors import OutputError
from simserve.metrics import summary_schema
from simserve.metrics.answers.shown import Shown
from simserve.metrics.summary_schema import Ratio as Capped
from simserve.tables.fields import Field as TableField
from simserve.tables.fields import Kind
from simserve.tables.schema import SCHEMA

if TYPE_CHECKING:
    from simserve.tables.columns import Columns, TableRows

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
Name = Annotated[str, Column("text", "category")]
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


# deferred, as most commands read no answer back; by name, where a key of the file is no term of the field
class Struct(BaseModel, frozen=True, defer_build=True, populate_by_name=True):
    """A frozen record; keys of a later version are ignored, and None stands for what is not known."""

    only_set: ClassVar[bool] = False
    """JSON leaves out what was not set."""

    def facts(self) -> dict[str, Any]:
        """Return the struct as JSON has it."""
        result: dict[str, Any] = _plain(self.model_dump(by_alias=True, exclude_unset=self.only_set))
        return result


class Figures(Struct):
    """What was measured in a run; None in place of NaN and infinity, which a file must not hold."""

    only_set = True

    def at(self, key: str) -> float:
        """Return the number at a dotted key, such as `ttft_s.p99.9`; NaN where there is none."""
        value: Any = self
        for part in key.replace("p99.9", "p999").split("."):
            value = None if value is None else getattr(value, NAMES.get(part, part))
        return math.nan if value is None else float(value)

    @model_validator(mode="before")
    @classmethod
    def _finite(cls, given: Any, info: ValidationInfo) -> Any:
        return given if info.context == READ else _plain(given)


NAMES = {"n_worth": "n_effective"}
"""Fields by what files call them, where that is no term of theirs."""

READ = "read"
"""Context of validation for what a file holds."""


class StudyAnswer(Shown, Struct):
    """The answer of a study, with the runs behind it unless it was read from a file."""

    listed: ClassVar[tuple[str, type[Struct]] | None] = None
    """The field with the rows of its table, and their struct; None where these are runs."""

    _rows: Any = PrivateAttr(None)
    _scenario_yaml: str | None = PrivateAttr(None)

    def with_runs(self, rows: "TableRows | None", scenario_yaml: str | None = None) -> Self:
        """Return the answer with the rows of its parquet file, and the scenario that it is about or found."""
        answer = self.model_copy()
        answer._rows, answer._scenario_yaml = rows, scenario_yaml
        return answer

    @property
    def rows(self) -> "TableRows":
        """The rows that its parquet file has. Raises OutputError for an answer that was read from a file."""
        if self.listed is not None:
            from simserve.tables.columns import TableRows  # late: numpy

            name, struct = self.listed
            return TableRows(f"{self.command}.parquet", fields_of(struct), table_of(struct, getattr(self, name)))
        if self._rows is None:
            rule = "has no rows, as it was read from a file"
            raise OutputError(f"{self.command}: the answer {rule}; read the parquet file beside it with pandas")
        rows: TableRows = self._rows
        return rows

    @property
    def scenario_yaml(self) -> str | None:
        """The scenario as YAML, of a plan with the fleet to take; None where there is none."""
        return self._scenario_yaml

    def __eq__(self, other: object) -> bool:
        """Compare what JSON has."""
        return type(self) is type(other) and self.__dict__ == other.__dict__


class VersionedAnswer(StudyAnswer):
    """An answer with the versions of its schema and of simserve in its file."""

    schema_: str = Field(SCHEMA, alias="schema")
    """Version of the schema."""
    version: str | None = None
    """Version of simserve that ran it."""


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
