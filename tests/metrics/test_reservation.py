"""Reservations of KV are named where they keep requests waiting, and nowhere else; cases worked by hand."""

from typing import Any

import numpy as np
import pytest

from simserve.metrics.kv import reservation
from simserve.metrics.kv_json import KvUseJson, ReservationJson, cause_and_remedy, reservation_warnings
from simserve.metrics.window import Window
from simserve.tables.columns import Categorical
from simserve.tables.facts import ReservingFacts
from tests.metrics.stories import Life, Teller, pool_facts, run_facts, tables

RESERVING = ReservingFacts(slots=8, longest_tokens=1000, without=None)
BLOCKED = ("", "seats", "blocks", "budget")


def measured(
    steps: list[tuple[float, int, int, int, int, str]],
    reserving: ReservingFacts | None = RESERVING,
    max_tokens: list[int] | None = None,
    outputs: tuple[int, ...] = (10, 20, 30),
) -> Any:
    """Return what is measured of rows (seconds, requests, blocks used, reserved, waiting, blocked by) on 100 blocks.

    Three requests of 100 + 20 tokens were answered.
    """
    seconds, n, used, reserved, waiting, blocked = zip(*steps, strict=True)
    end_s = np.cumsum(seconds)
    rows = {
        "replica": np.zeros(len(steps), np.int32),
        "start_s": end_s - np.array(seconds),
        "end_s": end_s,
        "decode_requests": np.array(n, np.int32),
        "prefill_tokens": np.zeros(len(steps), np.int32),
        "kv_blocks_used": np.array(used, np.int32),
        "kv_blocks_reserved": np.array(reserved, np.int32),
        "queue_len": np.array(waiting, np.int32),
        "blocked_by": Categorical(np.array([BLOCKED.index(each) for each in blocked], np.int32), BLOCKED),
    }
    requests = {
        "replica": np.zeros(3, np.int32),
        "status": Categorical(np.zeros(3, np.int32), ("finished",)),
        "prompt_tokens": np.full(3, 100),
        "output_tokens": np.array(outputs),
        "max_tokens": None if max_tokens is None else np.array(max_tokens),
    }
    facts = run_facts(tables([Life(0, 1)], [Teller([Life(0, 1)])]), pools=(pool_facts(reserving=reserving),))
    window = Window(0.0, end_s[-1], end_s[-1], "last arrival", np.ones(3, np.bool_))
    return reservation(requests, rows, facts, window)


def test_it_says_what_is_reserved_what_is_used_and_how_many_fit() -> None:
    result = measured([(3.0, 2, 4, 80, 5, "blocks"), (1.0, 1, 2, 40, 0, "")])
    assert result is not None
    assert result.facts() == {
        "waits_frac": 0.75,
        "is_estimate": False,
        "at_once": 2,
        "reserved_tokens": 1000,
        "used_tokens": 120,
        "longest_output_tokens": 30,
        "max_tokens": None,
        "without": None,
    }


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ((3.0, 2, 4, 80, 0, ""), "none waits"),
        ((3.0, 2, 60, 20, 5, "blocks"), "blocks are used"),
        ((3.0, 8, 4, 94, 5, "seats"), "no slot is free"),
        ((3.0, 2, 4, 40, 5, "budget"), "one more fits"),
        ((0.009, 2, 4, 80, 5, "blocks"), "less than 1% of the time"),
    ],
)
def test_it_is_silent_where_reservations_do_not_bind(row: tuple[float, int, int, int, int, str], why: str) -> None:
    idle = (3.0 if row[0] == 3.0 else 0.991, 1, 2, 40, 0, "")
    assert measured([row, idle]) is None, why
    assert measured([(3.0, 2, 4, 80, 5, "blocks")], reserving=None) is None, "the policy reserves nothing"


def test_a_padded_batch_that_blocks_kept_small_waits_for_reservations_though_it_names_a_slot() -> None:
    assert measured([(3.0, 2, 4, 80, 5, "seats")]).at_once == 2
    assert measured([(3.0, 2, 4, 60, 5, "seats")]) is None  # a third would have fit: it came later


KEYS: dict[str, Any] = {
    "waits_frac": 1.0,
    "is_estimate": False,
    "reserved_tokens": 131_072,
    "used_tokens": 850,
    "at_once": 3,
    "longest_output_tokens": 90,
}


@pytest.mark.parametrize(
    ("limit", "without", "remedy"),
    [
        (None, None, "Set workload.max_tokens (the longest answer has 90 tokens)"),
        (None, "a: b", "Set workload.max_tokens (the longest answer has 90 tokens), or set a: b"),
        (101, None, "Lower workload.max_tokens or the trace's max_tokens (the longest answer has 90 tokens)"),
        (99, "a: b", "Set a: b"),
        (99, None, "Take a scheduler that reserves nothing, such as chunked"),
    ],
)
def test_the_remedy_is_the_key_that_helps(limit: int | None, without: str | None, remedy: str) -> None:
    reserved = ReservationJson(**KEYS, max_tokens=limit, without=without)
    sentences = cause_and_remedy(reserved)
    cause = "ach request reserves 131,072 tokens of KV but uses about 850, so a replica holds 3 at once and others wait"
    assert sentences == f"E{cause}. {remedy}"
    assert max(len(each.split()) for each in sentences.split(". ")) <= 30
    use = KvUseJson(reservation=reserved)
    assert reservation_warnings([KvUseJson(), use, use]) == [f"e{cause}. {remedy}"]


def test_limits_of_a_trace_are_what_is_reserved() -> None:
    row = (3.0, 2, 4, 80, 5, "blocks")
    assert measured([row], max_tokens=[300, 400, 500]).reserved_tokens == 500
    assert measured([row], max_tokens=[300, 5000, 5000]).reserved_tokens == 1000  # no more than the model allows


def test_a_policy_that_only_counts_on_blocks_is_named_where_the_longest_request_would_have_fitted() -> None:
    counting = ReservingFacts(8, 1000, "a lower cap", most_output_tokens=400)
    result = measured([(3.0, 4, 30, 0, 5, "blocks"), (1.0, 1, 8, 0, 0, "")], counting)
    assert (result.waits_frac, result.at_once) == (0.75, 4)
    assert (result.reserved_tokens, result.used_tokens, result.is_estimate) == (500, 120, True)
    assert cause_and_remedy(result).startswith(
        "Each request starts only where 500 tokens of KV are free but uses about 120, so a replica holds 4 at once and "
        "others wait. Set workload.max_tokens (the longest answer has 30 tokens), or set a lower cap"
    )
    assert measured([(3.0, 4, 60, 0, 5, "blocks")], counting) is None  # most blocks are used
    assert measured([(3.0, 1, 30, 0, 5, "blocks")], counting, outputs=(10, 20, 1100)) is None  # it may not have fitted
    assert measured([(3.0, 4, 30, 0, 5, "budget")], counting) is None
