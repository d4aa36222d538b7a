"""Attempts: the columns of requests.parquet about clients that gave up or retried."""

import numpy as np

from simserve.engine.clients import Clients
from simserve.engine.cluster import Cluster
from simserve.tables.columns import Columns
from simserve.units import PS_PER_S, array_to_s


def attempt_columns(cluster: Cluster) -> Columns:
    """Return columns, in the order of sending: attempt number, first send time, give-up time, and tokens computed in
    vain."""
    sender, arrivals = cluster.sender, cluster.rows.arrivals
    sent = sender.rows_sent
    columns: Columns = {
        "attempt": np.ones(sender.n_sent, np.int32),
        "first_sent_s": array_to_s(arrivals[cluster.rows.originals(sent)]),
        "gave_up_s": np.full(sender.n_sent, np.nan),
        "wasted_tokens": np.zeros(sender.n_sent, np.int64),
    }
    if not isinstance(sender, Clients):
        return columns
    columns["attempt"] = sender.attempts
    deadlines = sender.deadlines
    if deadlines is not None:
        place = {row: at for at, row in enumerate(sender.rows_sent.tolist())}
        for row, at_ps in deadlines.gave_up_ps.items():
            columns["gave_up_s"][place[row]] = at_ps / PS_PER_S
        for row, n_tokens in deadlines.wasted_tokens().items():
            columns["wasted_tokens"][place[row]] = n_tokens
    return columns
