"""Capacity result: the facts of a capacity study, and every load that it ran."""

from dataclasses import dataclass
from typing import Any

from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity.rows import ROWS, capacity_rows
from simserve.study.study_folder import TableRows


@dataclass(frozen=True)
class CapacityResult:
    """The answer as data, and the loads behind it."""

    facts: dict[str, Any]
    """What `simserve capacity --json` prints."""
    probed: tuple[tuple[str | None, LoadPoint], ...]
    """Each load that was run, with its split in a study of splits."""

    @property
    def rows(self) -> TableRows:
        """`capacity.parquet`: one row per load and seed."""
        return TableRows("capacity.parquet", ROWS, capacity_rows(self.facts["asked"], self.probed))
