"""Found: what a study of a capacity came to: its facts, and every load that was run for them."""

from dataclasses import dataclass
from typing import Any

from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity.rows import ROWS, capacity_rows
from simserve.study.study_folder import TableRows


@dataclass(frozen=True)
class CapacityResult:
    """The answer as data, and what it rests on."""

    facts: dict[str, Any]
    """What `simserve capacity --json` prints."""
    probed: tuple[tuple[str | None, LoadPoint], ...]
    """Each load, with the split that it was tried with if one was asked about."""

    @property
    def rows(self) -> TableRows:
        """A row a load and seed."""
        return TableRows("capacity.parquet", ROWS, capacity_rows(self.facts["asked"], self.probed))
