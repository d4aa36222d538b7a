"""Reasons: why requests got no full answer, as `status_reason` has it."""

import numpy as np

from simserve.metrics.window import Window
from simserve.tables.columns import Columns

MOST = 3
"""A run has few; a policy of one's own may have as many as it likes."""


def reasons(requests: Columns, window: Window) -> dict[str, int]:
    """How often each of the most frequent ones of the window's requests that did not finish."""
    column = requests["status_reason"].without_blank()
    lost = window.has & ~requests["status"].is_("finished") & (column.codes >= 0)
    result = np.bincount(column.codes[lost], minlength=len(column.categories))
    most = np.argsort(-result, kind="stable")[:MOST]
    return {column.categories[code]: int(result[code]) for code in most.tolist() if result[code]}
