"""The table of a sweep: a row a point and seed, the varied keys as columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from simserve.scenario.written import flow
from simserve.study.sweep.run import ALL_MEASURES, PER_USD
from simserve.study.sweep.sweep import Sweep
from simserve.tables.columns import Categorical, Columns
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


def sweep_table(sweep: Sweep) -> tuple[tuple[Field, ...], Columns]:
    """Fields and columns, by point and then by seed; what a failed run does not have is null."""
    flat = [(point, row) for point, rows in zip(sweep.question.points, sweep.rows, strict=True) for row in rows]
    keys = list(dict.fromkeys(key for point in sweep.question.points for key in point.values))
    values = {key: [point.values.get(key) for point, _ in flat] for key in keys}
    varied = tuple(Field(key, _kind(cells)) for key, cells in values.items())
    fields = (Field("point", "int64"), *varied, *FIXED, *MEASURED)
    cells: dict[str, list[Any]] = {"point": [point.number for point, _ in flat], **values}
    cells |= {field.name: [row.get(field.name) for _, row in flat] for field in (*FIXED, *MEASURED)}
    return fields, {field.name: _column(field.kind, cells[field.name]) for field in fields}


def _kind(cells: Sequence[Any]) -> Kind:
    """What holds all values of a key; lists and mappings are text, as YAML writes them on one line."""
    types = {type(cell) for cell in cells if cell is not None}
    if types == {bool}:
        return "flag"
    if types == {int}:
        return "int64"
    return "float" if types and types <= {int, float} else "category"


def _column(kind: Kind, cells: Sequence[Any]) -> Any:
    if kind == "category":
        words = [None if cell is None else cell if isinstance(cell, str) else flow(cell) for cell in cells]
        known = tuple(dict.fromkeys(word for word in words if word is not None))
        codes = {word: place for place, word in enumerate(known)}
        return Categorical(np.array([-1 if word is None else codes[word] for word in words], np.int32), known)
    if kind == "float":
        return np.array([np.nan if cell is None else cell for cell in cells], np.float64)
    is_null = np.array([cell is None for cell in cells])
    plain = np.array([0 if cell is None else cell for cell in cells], np.bool_ if kind == "flag" else np.int64)
    return np.ma.MaskedArray(plain, is_null) if is_null.any() else plain
