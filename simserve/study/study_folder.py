"""The output folder of a study: answer as JSON, rows, scenario, page and workbook, written atomically."""

from collections.abc import Mapping
from pathlib import Path

from simserve.tables.columns import TableRows
from simserve.tables.folder import Kind, result_folder


def write_study(directory: Path, kind: Kind, files: Mapping[str, str | bytes], rows: TableRows | None = None) -> None:
    """Write the files by name. Raises OutputError if the folder holds something else, or cannot be written."""
    with result_folder(directory, kind) as folder:
        for name, content in files.items():
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        if rows is not None:
            from simserve.tables.parquet import write_table  # late import: pyarrow

            write_table(folder / rows.name, rows.fields, rows.columns)
