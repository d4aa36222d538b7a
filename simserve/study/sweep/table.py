"""Table of a sweep: a row per point and seed, with varied keys as columns."""

from collections.abc import Sequence
from typing import Any

from simserve.scenario.dump import flow
from simserve.study.study_folder import TableRows
from simserve.study.sweep.run import ALL_MEASURES, PER_USD
from simserve.study.sweep.sweep import Sweep
from simserve.tables.columns import typed_columns
from simserve.tables.schema import Field, Kind

UNITS = {"s": "s", "frac": "share 0..1", "per_s": "1/s", "count": ""}

FIXED = (Field("seed", "int64"), Field("status", "category"), Field("reason", "category"))
MEASURED = (
    *(Field(m.key, "float", "requests/$" if m is PER_USD else UNITS[m.unit]) for m in ALL_MEASURES),
    Field("saturated", "flag"),
    Field("n_gpus", "int64"),
    Field("usd_per_hour", "float", "$/h"),
    Field("kw", "float", "kW"),
    Field("wall_s", "float", "s"),
)


def sweep_rows(sweep: Sweep) -> TableRows:
    """Return `sweep.parquet`, ordered by point and seed; missing values are null."""
    flat = [(point, row) for point, rows in zip(sweep.question.points, sweep.rows, strict=True) for row in rows]
    keys = list(dict.fromkeys(key for point in sweep.question.points for key in point.values))
    values = {key: [point.values.get(key) for point, _ in flat] for key in keys}
    varied = tuple(Field(key, _kind(cells)) for key, cells in values.items())
    fields = (Field("point", "int64"), *varied, *FIXED, *MEASURED)
    texts = {field.name for field in varied if field.kind == "category"}
    rows = [
        {**row, "point": point.number, **{key: _cell(value, key in texts) for key, value in point.values.items()}}
        for point, row in flat
    ]
    return TableRows("sweep.parquet", fields, typed_columns(fields, rows))


def _cell(value: Any, is_text: bool) -> Any:
    return value if value is None or isinstance(value, str) or not is_text else flow(value)


def _kind(cells: Sequence[Any]) -> Kind:
    """Return the kind that holds all values of a key; lists and mappings become YAML text."""
    types = {type(cell) for cell in cells if cell is not None}
    if types == {bool}:
        return "flag"
    if types == {int}:
        return "int64"
    return "float" if types and types <= {int, float} else "category"
