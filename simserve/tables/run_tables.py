"""RunTables: the engine's output of a finished run. Everything reported is computed from it."""

from dataclasses import dataclass

from simserve.tables.columns import Columns, Floats


@dataclass(frozen=True)
class ExtraColumns:
    """Columns of the engine that no file holds; the split of a request's time is computed from them."""

    routed_s: Floats
    """Instant at which each request reached the router, `(n_requests,)`."""
    notice_s: Floats
    """Time of the notice that the decode replica has blocks, with push; 0 for requests without one, `(n_requests,)`."""
    chunks_s: Floats
    """Time of the steps with a chunk of its prompt, except the last chunk, before any preemption, `(n_requests,)`."""
    pauses: Columns
    """One row per finished preemption: request_id (row number), left_s, back_s, is_swapped; in the order of back_s."""
    stalls: Columns
    """Instants at which a replica began no step although requests waited: replica, at_s, blocked_by; by replica, then
    in time order."""


@dataclass(frozen=True)
class RunTables:
    """Three tables; their columns are the engine's own among those of `tables/schema.py`."""

    requests: Columns
    """Row i is row i of the offered load."""
    steps: Columns
    """One row per step run; by replica, then in time order."""
    spans: Columns
    """One row per completed prefill: a token at join_s, then one at the end of each decode step first..last."""
    extra: ExtraColumns | None = None
    """None for tables read from files: their requests have the columns computed from it."""
