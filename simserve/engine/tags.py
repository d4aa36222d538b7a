"""Tags: what requests of a load are marked with, for policies and for the tables: class, priority, tenant."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.state.request import Request
from simserve.workload.trace import Trace

NAMES = ("slo_class", "priority", "tenant")
"""Columns of a trace that are handed on as they are."""


class Tags:
    """Columns of marks, of all traces that were added; a column that the first of them has not is None.

    fast: a memoryview of an int64 column gives Python integers; tenants are numbered, and numbers are short.
    """

    def __init__(self, trace: Trace) -> None:
        self.columns: dict[str, NDArray[Any] | None] = dict.fromkeys(NAMES)
        self._tenants: list[str] = []
        for name in NAMES:
            self.columns[name] = getattr(trace, name)
        self._number()

    def append(self, trace: Trace) -> None:
        """Those of further rows."""
        for name, column in self.columns.items():
            if column is not None:
                self.columns[name] = np.concatenate([column, getattr(trace, name)])
        self._number()

    def mark(self, request: Request) -> None:
        """Tell a request of its priority and its tenant."""
        if self._priority is not None:
            request.priority = self._priority[request.row]
        if self._tenant is not None:
            request.tenant = self._tenants[self._tenant[request.row]]

    def _number(self) -> None:
        priority, tenant = self.columns["priority"], self.columns["tenant"]
        self._priority = None if priority is None else priority.astype(np.int64).data
        self._tenant = None
        if tenant is not None:
            names, numbers = np.unique(tenant, return_inverse=True)
            self._tenants, self._tenant = names.tolist(), numbers.astype(np.int64).data

    @property
    def are_there(self) -> bool:
        """Policies can tell requests apart by them."""
        return self._priority is not None or self._tenant is not None
