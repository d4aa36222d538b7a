"""RunTables: what the engine hands over when a run is done. Everything reported is computed from these."""

from dataclasses import dataclass

from simserve.tables.columns import Columns


@dataclass(frozen=True)
class RunTables:
    """Three tables; their columns are those of `tables/schema.py` that the engine itself knows."""

    requests: Columns
    """Row i is row i of the offered load."""
    steps: Columns
    """A row a stretch of steps with the same members; replicas one after the other, each in time order."""
    spans: Columns
    """A row a completed prefill: a token at join_s, then one at the end of each decode step first..last."""
