"""Table of a sweep: a row per point and seed, with varied keys as columns."""

from collections.abc import Sequence
from typing import Any

from simserve.metrics.answers.struct import fields_of, table_of
from simserve.metrics.answers.sweep_runs import FinishedRun
from simserve.scenario.dump import flow
from simserve.study.study_folder import TableRows
from simserve.study.sweep.sweep import Sweep
from simserve.tables.columns import typed_columns
from simserve.tables.schema import Field, Kind


def sweep_rows(sweep: Sweep) -> TableRows:
    """Return `sweep.parquet`, ordered by point and seed; missing values are null."""
    flat = [(point, run) for point, runs in zip(sweep.question.points, sweep.rows, strict=True) for run in runs]
    keys = list(dict.fromkeys(key for point in sweep.question.points for key in point.values))
    varied = [Field(key, _kind([point.values.get(key) for point, _ in flat])) for key in keys]
    texts = {field.name for field in varied if field.kind == "category"}
    of_point = (Field("point", "int64"), *varied)
    rows = [
        {"point": point.number, **{key: _cell(value, key in texts) for key, value in point.values.items()}}
        for point, _ in flat
    ]
    columns = typed_columns(of_point, rows) | table_of(FinishedRun, [run for _, run in flat])
    return TableRows("sweep.parquet", (*of_point, *fields_of(FinishedRun)), columns)


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
