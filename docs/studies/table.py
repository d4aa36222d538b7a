"""Write a Markdown table, as the studies print it and their pages show it."""

from collections.abc import Mapping

Rows = Mapping[str, Mapping[str, float | str]]
"""Results: name of the row, name of the column, value."""


def markdown(corner: str, rows: Rows, formats: Mapping[str, str]) -> str:
    """Return one line per row; `formats` names the columns in order, with their number formats."""
    lines = [f"| {corner} | " + " | ".join(formats) + " |", "|---" * (len(formats) + 1) + "|"]
    for name, cells in rows.items():
        lines.append(f"| {name} | " + " | ".join(how.format(cells[column]) for column, how in formats.items()) + " |")
    return "\n".join(lines)
