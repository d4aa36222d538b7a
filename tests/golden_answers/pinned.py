"""The four files of pinned answers: read, compared and written again, one line an entry."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.golden_answers.answers import Entries, answers
from tests.golden_answers.differences import Difference, differences
from tests.golden_answers.studies import COMMANDS, Studies

KINDS = ("answers", "sentences", "cells", "schemas")
FOLDER = Path(__file__).parent
LINE = 200
"""An entry with more characters is written one part a line."""


def pinned() -> dict[str, dict[str, Entries]]:
    """Return the entries by file and study."""
    return {kind: json.loads((FOLDER / f"{kind}.json").read_text(encoding="utf-8")) for kind in KINDS}


def compare(expected: dict[str, dict[str, Entries]], studies: Studies, study: str) -> list[Difference]:
    """Run a study; return where it answers otherwise."""
    got = answers(studies, study)
    return [found for kind in KINDS for found in differences(expected[kind].get(study, {}), got[kind], kind)]


def write(folder: Path, scratch: Path) -> None:
    """Write the answers of all studies."""
    studies = Studies(scratch)
    found = {study: answers(studies, study) for study in COMMANDS}
    for kind in KINDS:
        content = {study: parts[kind] for study, parts in found.items() if parts[kind]}
        (folder / f"{kind}.json").write_text(as_text(content) + "\n", encoding="utf-8")


def as_text(value: Any, depth: int = 0) -> str:
    """Return JSON with its keys in order and an entry a line; a long one takes a line for each of its parts."""
    line = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if not isinstance(value, dict | list) or (depth > 1 and (len(line) <= LINE or is_entry(value))):
        return line
    if isinstance(value, dict):
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {as_text(value[key], depth + 1)}" for key in ordered(value)]
    else:
        parts = [as_text(part, depth + 1) for part in value]
    start, end = "{}" if isinstance(value, dict) else "[]"
    gap = "\n" + " " * depth
    return start + ",".join(f"{gap} {part}" for part in parts) + gap + end


def is_entry(value: Any) -> bool:
    """Return whether a value stays in one line however long: a sentence, or a list of numbers."""
    if isinstance(value, dict):
        return value.keys() == {"words", "numbers"}
    return not any(isinstance(part, dict | list | str) for part in value)


def ordered(keys: Iterable[str]) -> list[str]:
    """Return keys by name, and numbers within them by size."""
    return sorted(keys, key=lambda key: [part.zfill(6) if part.isdigit() else part for part in key.split(".")])
