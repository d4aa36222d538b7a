"""Sending order: tables whose requests were not sent in the order of the load's rows, put in the order of sending."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.engine.offered import Rows
from simserve.engine.session_sender import SessionSender
from simserve.tables.columns import Categorical, Columns
from simserve.tables.run_tables import RunTables


def in_order_of_sending(tables: RunTables, sender: SessionSender, rows: Rows) -> RunTables:
    """The requests that were sent, by their arrival, and spans that name them by their new places.

    tables: with a row for each row of the load, sent or not, but session_id and turn, of which only the first may be
    there.
    """
    sent = sender.rows_sent
    given = {name: rows.given(name) for name in ("session_id", "turn")}
    requests: Columns = {name: _taken(column, sent) for name, column in (tables.requests | given).items()}
    if requests["request_id"].dtype.kind == "i":  # the load has none of its own: a request's place is its id
        requests["request_id"] = np.arange(len(sent))
    requests["session_requests"] = sender.sessions.n_rows_of(sent)
    place = np.full(len(rows), -1)
    place[sent] = np.arange(len(sent))
    return replace(tables, requests=requests, spans=tables.spans | {"request_id": place[tables.spans["request_id"]]})


def _taken(column: Any, rows: NDArray[np.int64]) -> Any:
    if column is None:
        return None
    return Categorical(column.codes[rows], column.categories) if isinstance(column, Categorical) else column[rows]
