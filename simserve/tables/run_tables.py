"""RunTables: what the engine hands over when a run is done. Everything reported is computed from these."""

from dataclasses import dataclass

from simserve.tables.columns import Columns, Floats


@dataclass(frozen=True)
class ExtraColumns:
    """What the engine knows of requests and replicas that no file holds: how their time is split is made from it."""

    routed_s: Floats
    """When each request came to the router, `(n_requests,)`."""
    chunks_s: Floats
    """Steps that computed a part of its prompt, but for the last part, before any preemption, `(n_requests,)`."""
    pauses: Columns
    """A row a preemption that was over: request_id (row number), left_s, back_s, is_swapped; in the order of back_s."""
    stalls: Columns
    """When a replica began no step though somebody waited: replica, at_s, blocked_by; replicas one after the
    other, each in time order."""


@dataclass(frozen=True)
class RunTables:
    """Three tables; their columns are those of `tables/schema.py` that the engine itself knows."""

    requests: Columns
    """Row i is row i of the offered load."""
    steps: Columns
    """A row a stretch of steps with the same members; replicas one after the other, each in time order."""
    spans: Columns
    """A row a completed prefill: a token at join_s, then one at the end of each decode step first..last."""
    extra: ExtraColumns | None = None
    """None of tables that were read: their requests have the columns that were made from it."""
