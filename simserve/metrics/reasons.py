"""Reasons: why requests got no full answer, by `status_reason`."""

import numpy as np

from simserve.metrics.window import Window
from simserve.tables.columns import Columns

MOST = 3
"""Reported reasons at most; a custom policy may have any number."""


def reasons(requests: Columns, window: Window) -> dict[str, int]:
    """Count the most frequent reasons of the window's unfinished requests."""
    column = requests["status_reason"].without_blank()
    lost = window.has & ~requests["status"].is_("finished") & (column.codes >= 0)
    counts = np.bincount(column.codes[lost], minlength=len(column.categories))
    most = np.argsort(-counts, kind="stable")[:MOST]
    return {column.categories[code]: int(counts[code]) for code in most.tolist() if counts[code]}
