"""What differs between two answers, told by the place, in one screen."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

RELATIVE = 1e-12
"""Numbers agree to this share: the last bits of logarithms and sums differ between processors and libraries."""
N_SHOWN = 10
WIDTH = 110
NUMBER = re.compile(r"(?<![\w.])(?<!\w-)[-+−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w|[.,]\d|-\d)")


def sentence(text: str) -> dict[str, Any]:
    """Return a sentence with its numbers taken apart; digits in names such as h100-sxm and p99 stay words."""
    return {"words": NUMBER.sub("{}", text), "numbers": NUMBER.findall(text)}


@dataclass(frozen=True)
class Difference:
    """One place where an answer is not the pinned one."""

    kind: str
    """number, words, missing or new."""
    id: str
    expected: Any = None
    got: Any = None

    def __str__(self) -> str:
        if self.kind == "missing":
            return f"missing  {self.id}, expected {cut(repr(self.expected))}"
        if self.kind == "new":
            return f"new      {self.id}: {cut(repr(self.got))}"
        start = first_change(repr(self.expected), repr(self.got))
        expected, got = (cut(repr(value), start) for value in (self.expected, self.got))
        return f"{self.kind:<8} {self.id}\n  expected {expected}\n  got      {got}"


def differences(expected: Any, got: Any, id: str = "") -> Iterator[Difference]:
    """Yield every place where two values of JSON differ."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in sorted(expected.keys() | got.keys()):
            place = f"{id} {key}".strip()
            if key not in got:
                yield Difference("missing", place, expected=expected[key])
            elif key not in expected:
                yield Difference("new", place, got=got[key])
            else:
                yield from differences(expected[key], got[key], place)
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for i, pair in enumerate(zip(expected, got, strict=True)):
            yield from differences(*pair, f"{id} {i}")
    elif not is_same(expected, got):
        yield Difference(kind_of(expected, got), id, expected, got)


def is_same(expected: Any, got: Any) -> bool:
    """Return whether two values are the same: of one type, and numbers to RELATIVE."""
    if type(expected) is not type(got):
        return False
    if isinstance(expected, float):
        return math.isclose(expected, got, rel_tol=RELATIVE)
    return bool(expected == got)


def kind_of(expected: Any, got: Any) -> str:
    """Return whether what differs is a number, also one within a text, or words alone."""
    if isinstance(expected, str) and isinstance(got, str) and NUMBER.findall(expected) == NUMBER.findall(got):
        return "words"
    return "number"


def report(study: str, found: list[Difference]) -> str:
    """Return the first differences of a study, in one screen."""
    counts = Counter(difference.kind for difference in found)
    head = f"{study}: {', '.join(f'{n} {kind}' for kind, n in counts.items())}; the first {min(N_SHOWN, len(found))}:"
    advice = "Meant so? python -m tests.golden_answers writes the files again, and the changelog says why."
    return "\n".join([head, *map(str, found[:N_SHOWN]), advice])


def first_change(a: str, b: str) -> int:
    """Return where two texts part."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def cut(text: str, at: int = 0) -> str:
    """Return the piece of a text around a position, in one line."""
    start = max(0, at - WIDTH // 3) if len(text) > WIDTH else 0
    return "…" * (start > 0) + text[start : start + WIDTH] + "…" * (len(text) > start + WIDTH)
