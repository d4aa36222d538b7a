"""Texts that are numbers in the units of their keys: 500ms, 15min, 5% and 1,000."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from simserve.plugins.validation import Path

SECONDS = {"us": "1e-6", "ms": "1e-3", "s": "1", "sec": "1", "min": "60", "m": "60", "h": "3600", "d": "86400"}
SECONDS |= {f"{word}{s}": SECONDS[word[0]] for word in ("second", "minute", "hour", "day") for s in ("", "s")}
WITH_UNIT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(%|[a-z]+)")
THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+")
TEXTS = frozenset({"name", "version"})
"""Keys of texts that may look like numbers."""


def in_our_units(data: Any, path: Path = ()) -> Any:
    """Return the data of a scenario with texts that are numbers in the units of their keys, where it is clear what they
    mean: times as 500ms or 15min below a key that ends in `_s`, shares as 5%, and 1,000. Others stay as they are."""
    match data:
        case Mapping():
            return {key: in_our_units(value, (*path, key)) for key, value in data.items()}
        case list():
            return [in_our_units(value, (*path, index)) for index, value in enumerate(data)]
        case str() if not TEXTS.intersection(path[-1:]):
            number = _number(data.strip(), path)
            return data if number is None else number
    return data


def _number(text: str, path: Path) -> float | None:
    """Return the number that a text means in the unit of its key; None: it is none, or it is not clear which."""
    if THOUSANDS.fullmatch(text):
        return int(text.replace(",", ""))
    match = WITH_UNIT.fullmatch(text)
    if match is None:
        return None
    is_time = any(str(key).endswith("_s") and not str(key).endswith("per_s") for key in path)
    scale = ({"%": "0.01"} | (SECONDS if is_time else {})).get(match[2])
    return None if scale is None else float(Decimal(match[1]) * Decimal(scale))
