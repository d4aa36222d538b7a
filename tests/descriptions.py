"""The one form of the docstrings of keys, which JSON Schemas have as descriptions."""

import re
from collections.abc import Collection

FORM = re.compile(r"(?:\[(?P<unit>[^]]+)\] )?[A-Z0-9`][^\n]*\.")
"""[unit] Meaning."""

MOST_CHARACTERS = 240

UNITS = {
    "tokens_per_s": "tokens/s",
    "bytes_per_s": "bytes/s",
    "per_gpu_s": "/s",
    "per_s": "/s",
    "s": "s",
    "bytes": "bytes",
    "tokens": "tokens",
    "frac": "share",
}
"""Units by the last words of keys, more words first."""


def wrong(key: str, text: str | None, units: Collection[str | None] = ()) -> str | None:
    """Return what is wrong with the description of a key, or of an object; None if nothing is. No other units than
    these, if any are given."""
    match = FORM.fullmatch(text or "")
    if match is None or (units and match["unit"] not in units):
        return f"{key}: must be of the form '[unit] Meaning.', got {text!r}"
    if len(match[0]) > MOST_CHARACTERS:
        return f"{key}: must have at most {MOST_CHARACTERS} characters, got {len(match[0])}"
    words = f"_{key.replace('.', '_')}"
    ending = next((ending for ending in UNITS if words.endswith(f"_{ending}")), None)
    if ending is None or match["unit"] == UNITS[ending]:
        return None
    if "_per_" in words and "per" not in ending:  # an amount for each million tokens, or for so many
        return None
    return f"{key}: must begin with [{UNITS[ending]}], got {text!r}"
