"""Found: what a study of a capacity came to: its facts, and every load that was run for them."""

from dataclasses import dataclass
from typing import Any

from simserve.study.capacity.point import Point
from simserve.study.capacity.rows import ROWS, capacity_rows
from simserve.study.study_folder import Rows


@dataclass(frozen=True)
class Found:
    """The answer as data, and what it rests on."""

    facts: dict[str, Any]
    """What `simserve capacity --json` prints."""
    tried: tuple[tuple[str | None, Point], ...]
    """Each load, with the split that it was tried with if one was asked about."""

    @property
    def rows(self) -> Rows:
        """A row a load and seed."""
        return Rows("capacity.parquet", ROWS, capacity_rows(self.facts["asked"], self.tried))
