"""Trace: the offered load as equal-length columns. Row i of every column is request i."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_TOKENS = 10_000_000
"""More than any model takes: a length above it is a mistake, and may not fit 64 bits."""


@dataclass(frozen=True)
class Trace:
    """Requests in the order of their arrival, `(n_requests,)` each; a column that nobody gave is None.

    Invariant: arrival_s never decreases; prompt_tokens and output_tokens in [1, MOST_TOKENS].
    """

    arrival_s: NDArray[np.float64]
    """Seconds from the start of the run; the first request need not be at 0."""
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    max_tokens: NDArray[np.int64] | None = None
    request_id: NDArray[np.str_] | None = None
    session_id: NDArray[np.str_] | None = None
    turn: NDArray[np.int64] | None = None
    priority: NDArray[np.int64] | None = None
    slo_class: NDArray[np.str_] | None = None
    notes: tuple[str, ...] = ()
    """What a reader or generator wants the user to know: sorted rows, clipped shares, coarse stamps."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    def take(self, rows: slice | NDArray[np.int64]) -> "Trace":
        """Some of the requests, or all in another order."""
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        return Trace(**{k: v if k == "notes" or v is None else v[rows] for k, v in columns.items()})
