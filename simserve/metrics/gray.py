"""Gray failures: for how long replicas and links were slow, and for how many requests."""

from collections.abc import Iterator

import numpy as np

from simserve.tables.columns import Columns
from simserve.tables.facts import RunFacts
from simserve.tables.why import Reason, Why

MOST_NAMED = 3
"""Times at which something was slow that a warning names."""


def slowed(facts: RunFacts) -> list[tuple[int | None, Reason]]:
    """Return when each replica, by its number, and each link, None, was slow."""
    why = ((number, reason) for number, member in enumerate(facts.members) for reason in member.reasons)
    return [*dict.fromkeys((number if each.kind == Why.SLOW else None, each) for number, each in why if each.window_s)]


def slow_warnings(requests: Columns, facts: RunFacts) -> Iterator[str]:
    """Yield how long replicas were slow, and links, for how many requests, and the first few times."""
    replica, prefill, sent_s = requests["replica"], requests["prefill_replica"], requests["first_token_s"]
    served_s = requests["scheduled_s"], np.fmin(requests["finish_s"], requests["gave_up_s"])
    for kind, (from_s, to_s) in {Why.SLOW: served_s, Why.LINK: (sent_s, sent_s + requests["transfer_s"])}.items():
        is_link, slow = kind == Why.LINK, [(number, each) for number, each in slowed(facts) if each.kind == kind]
        is_touched, lasted_s = np.zeros(len(sent_s), np.bool_), 0.0
        for number, each in slow:
            start_s, end_s = each.window_s or (0.0, 0.0)
            end_s = facts.end_s if end_s is None else min(end_s, facts.end_s)
            lasted_s += max(0.0, end_s - start_s)
            pools = enumerate(facts.pools_by_replica)
            ids = [number] if number is not None else [at for at, pool in pools if each.of in ("", pool.name)]
            is_there = (np.isin(replica, ids) | np.isin(prefill, ids)) & ((prefill >= 0) | (not is_link))
            is_touched |= is_there & (from_s < end_s) & ~(to_s <= start_s)  # one without an end was there to the end
        n_slow, n = len({number for number, _ in slow}), int(np.count_nonzero(is_touched))
        of = "" if is_link else f" of {_plural(n_slow, 'replica')}"
        touched = f"{_plural(n, 'request')} {'in transfer' if is_link else 'there'} meanwhile"
        texts = [each.words if number is None else f"replica {number} {each.words}" for number, each in slow]
        more = [f"and {len(texts) - MOST_NAMED} more"] if len(texts) > MOST_NAMED else []
        if slow:
            what = f"slow {'links' if is_link else 'replicas'}: {_plural(len(slow), 'window')}{of}"
            head = f"{what}, {lasted_s:.3g} s in all, {touched}"
            yield f"{head}: {', '.join([*texts[:MOST_NAMED], *more])}"


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n != 1)}"
