"""Workbooks read back: by openpyxl, and by LibreOffice, which computes every formula itself."""

import io
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openpyxl import load_workbook

OFFICE = next(filter(None, map(shutil.which, ("soffice", "libreoffice"))), None)

SHEETS = (
    *("Summary", "Percentiles", "Time series", "Capacity curve", "Comparison", "Fleet options"),
    *("Simulated fleets", "Cost", "Growth"),
)
"""Names of all sheets in their order."""

Cells = dict[tuple[str, str], Any]
"""Values by sheet and address."""


def values(content: bytes) -> Cells:
    """What stands in the file, as readers that do not compute show it."""
    return _cells(load_workbook(io.BytesIO(content), data_only=True))


def formulas(content: bytes) -> Cells:
    """The formulas alone."""
    book = load_workbook(io.BytesIO(content))
    cells = ((sheet.title, cell) for sheet in book for row in sheet for cell in row)
    return {(title, cell.coordinate): cell.value for title, cell in cells if cell.data_type == "f"}


def computed(content: bytes, folder: Path, inputs: Mapping[tuple[str, str], float] | None = None) -> Cells:
    """What LibreOffice makes of the formulas once those cells hold other numbers.

    openpyxl writes formulas without their values, so nothing of what simserve computed is left.
    """
    book = load_workbook(io.BytesIO(content))
    for (sheet, address), number in (inputs or {}).items():
        book[sheet][address] = number
    folder.mkdir(exist_ok=True)
    book.save(folder / "bare.xlsx")
    converted = convert(folder / "bare.xlsx", folder / "out", "xlsx")
    return _cells(load_workbook(converted, data_only=True))


def convert(file: Path, folder: Path, kind: str) -> Path:
    """The same document as another kind of file, by LibreOffice without a screen; it must not complain."""
    profile = folder.parent / "profile"
    command = [str(OFFICE), f"-env:UserInstallation={profile.as_uri()}", "--headless", "--convert-to", kind]
    done = subprocess.run(
        [*command, "--outdir", str(folder), str(file)], capture_output=True, text=True, timeout=180, check=True
    )
    complaints = [line for line in done.stderr.splitlines() if "javaldx" not in line]  # no Java, which nothing needs
    assert not complaints, complaints
    return folder / f"{file.stem}.{kind.partition(':')[0]}"


def _cells(book: Any) -> Cells:
    return {
        (sheet.title, cell.coordinate): cell.value
        for sheet in book
        for row in sheet
        for cell in row
        if cell.value not in (None, "")
    }


def named(content: bytes) -> dict[str, tuple[str, str]]:
    """Sheet and address of every name."""
    book = load_workbook(io.BytesIO(content))
    return {name: next(iter(defined.destinations)) for name, defined in book.defined_names.items()}


def address_of(content: bytes, name: str) -> tuple[str, str]:
    """Without its dollar signs."""
    sheet, address = named(content)[name]
    return sheet, address.replace("$", "")
