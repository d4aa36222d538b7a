"""The sheet of comparisons: by how much B differs from A, measure by measure."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.metrics.result_folder import ResultFolder
from simserve.report.spreadsheet.sheets import Cell, Form, Row, Sheet, SheetColumn, SheetGroup, at

UNITS: dict[str, tuple[str, Form, float]] = {
    "s": ("ms", "ms", 1e3),
    "frac": ("share", "share", 1.0),
    "per_s": ("/s", "rate", 1.0),
    "count": ("", "rate", 1.0),
}
"""Unit, format and factor by which a measure is shown."""


def comparison(studies: Sequence[ResultFolder]) -> Sheet:
    """Return a row a measure of each pair."""
    return Sheet(
        "Comparison",
        "What B does that A does not",
        "B − A with its 95% CI where the runs have one. Better and worse are beyond chance, unclear is statistically "
        "tied.",
        "Pair",
        (
            SheetColumn("Measure", "text"),
            SheetColumn("Unit", "text"),
            SheetColumn("A", "rate"),
            SheetColumn("B", "rate"),
            SheetColumn("B − A", "rate"),
            SheetColumn("B − A, low", "rate"),
            SheetColumn("B − A, high", "rate"),
            SheetColumn("Change", "share", "share of A"),
            SheetColumn("B is", "text"),
        ),
        tuple(SheetGroup(study.label, [_row(each) for each in study.answer["measures"]]) for study in studies),
    )


def _row(each: Mapping[str, Any]) -> Row:
    unit, form, times = UNITS.get(each["unit"], (each["unit"], "rate", 1.0))
    figures = [at(each, key) for key in ("a", "b", "difference", "low", "high")]
    scaled = [Cell(None if figure is None else figure * times, form) for figure in figures]
    return (each["label"], unit, *scaled, at(each, "change_frac"), each["verdict"])
