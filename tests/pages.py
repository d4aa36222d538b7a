"""What tests read in a hand-written page: fenced blocks, commands, and what a page says that they print."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def read(path: str) -> str:
    """Return a page by its path in the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a page in one language."""
    return [block for name, block in all_blocks(text) if name == language]


def all_blocks(text: str) -> list[tuple[str, str]]:
    """Return language and text of each fenced block; a command that goes on in the next line is one line."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(name, block.replace("\\\n", "")) for name, block in fenced]


def not_printed(block: str, output: str) -> str | None:
    """Return the first piece of a block that is not in the output, in this order; pieces are parted by …, and line
    breaks and spaces do not count."""
    left = " ".join(output.split())
    for piece in block.split("…"):
        text = " ".join(piece.split())
        _, found, left = left.partition(text)
        if text and not found:
            return text
    return None
