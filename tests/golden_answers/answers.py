"""What a study answers, taken apart: JSON, sentences, cells and schemas."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from openpyxl import load_workbook

from simserve import __version__
from tests.cli.invoke import Outcome
from tests.golden_answers.differences import sentence
from tests.golden_answers.page_sentences import Page
from tests.golden_answers.studies import Studies

MASKED = {
    "wall_s": "how long the machine took",
    "version": "the release of simserve",
    "simserve": "the release that made a side of check",
}
"""Keys of JSON whose values depend on machine or release."""

MASKED_WORDS = {
    rf"simserve {re.escape(__version__)}": "simserve <version>",
    r"(simulated in )[\d.,]+ (ms|s|min)": r"\1<wall time>",
}
"""What depends on them in sentences, and what is pinned in its place; the folder of a study is `<folder>`."""
MOST_ROWS = 40
"""Of a sheet only its first rows are pinned, and how many it has."""

Entries = dict[str, Any]


def _without_folder(text: str, folder: Path) -> str:
    """Return JSON without the path of a folder, as it is or with the underscores that Markdown escapes."""
    plain = str(folder)
    return text.replace(plain, "<folder>").replace(plain.replace("_", r"\\_"), "<folder>")


def answers(studies: Studies, study: str) -> dict[str, Entries]:
    """Run a study; return its entries by the file that pins them."""
    outcomes = studies.outcomes(study)
    parts = {
        "answers": _answers(studies, study, outcomes),
        "sentences": _sentences(studies, study, outcomes),
        "cells": {file.name: cells(file) for file in studies.files(study, ".xlsx")},
        "schemas": {file.name: schema(file) for file in studies.files(study, ".parquet")},
    }
    result: dict[str, Entries] = json.loads(_without_folder(json.dumps(parts), studies.folder))
    return result


def _answers(studies: Studies, study: str, outcomes: list[Outcome]) -> Entries:
    """Return the JSON files of a study, and what --json printed."""
    texts = {file.name: file.read_text(encoding="utf-8") for file in studies.files(study, ".json")}
    texts |= {f"stdout.{n}": outcome.out for n, outcome in enumerate(outcomes, 1) if outcome.out.startswith("{")}
    exits = {"exit_codes": [outcome.exit_code for outcome in outcomes]}
    return exits | {name: masked(json.loads(text)) for name, text in texts.items()}


def _sentences(studies: Studies, study: str, outcomes: list[Outcome]) -> Entries:
    """Return the sentences of terminal, page and text files."""
    texts: dict[str, str] = {}
    for n, outcome in enumerate(outcomes, 1):
        if not outcome.out.startswith("{"):
            texts |= lines(f"terminal.{n}.out", outcome.out)
        texts |= lines(f"terminal.{n}.err", outcome.err)
    for file in studies.files(study, ".html"):
        texts |= Page(file.read_text(encoding="utf-8")).texts
    for ending in (".md", ".xml"):
        for file in studies.files(study, ending):
            texts |= lines(ending.strip("."), file.read_text(encoding="utf-8"))
    return {id: sentence(masked_words(text)) for id, text in texts.items()}


def lines(place: str, text: str) -> dict[str, str]:
    """Return the lines of a text by paragraph and line; columns of a table are parted as in a page."""
    return {
        f"{place}.{i}.{j}": re.sub(r"\s{2,}", " | ", line.strip())
        for i, paragraph in enumerate(text.strip().split("\n\n"), 1)
        for j, line in enumerate(paragraph.splitlines(), 1)
        if line.strip()
    }


def masked(value: Any) -> Any:
    """Return JSON without the values of MASKED."""
    if isinstance(value, dict):
        return {key: "<masked>" if key in MASKED else masked(inner) for key, inner in value.items()}
    return [masked(inner) for inner in value] if isinstance(value, list) else value


def masked_words(text: str) -> str:
    """Return a sentence without what MASKED_WORDS names."""
    for pattern, instead in MASKED_WORDS.items():
        text = re.sub(pattern, instead, text)
    return text


def cells(file: Path) -> Entries:
    """Return the cells of a workbook by sheet, row and column; a formula with the value that was computed for it."""
    formulas, values = load_workbook(file), load_workbook(file, data_only=True)
    result: dict[str, Any] = {"names": {name: each.attr_text for name, each in formulas.defined_names.items()}}
    for sheet in formulas:
        rows: dict[str, Any] = {"rows": sheet.max_row}
        for cell in (cell for row in sheet.iter_rows(max_row=MOST_ROWS) for cell in row if cell.value is not None):
            computed = values[sheet.title][cell.coordinate].value
            content = [cell.value, computed] if cell.data_type == "f" else cell.value
            rows.setdefault(f"{cell.row}", {})[cell.column_letter] = content
        result[sheet.title] = rows
    return result


def schema(file: Path) -> Entries:
    """Return columns in their order with Arrow types, and the keys of metadata."""
    arrow = pq.read_schema(file)
    columns = [f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in arrow]
    keys = sorted(key.decode() for key in (arrow.metadata or {}))
    inner = {field.name: sorted(key.decode() for key in field.metadata) for field in arrow if field.metadata}
    return {"columns": columns, "metadata": keys, "metadata_of_columns": inner}
