"""What the slowest waited for, by hand."""

from typing import Any

import numpy as np
import pytest

from simserve.metrics.slowest import time_split
from simserve.metrics.time_split import PARTS
from simserve.metrics.window import Window
from simserve.tables.columns import Categorical, Columns
from simserve.tables.facts import LinkFacts, RunFacts
from tests.metrics.stories import Life, Teller, run_facts, tables


def facts(**changes: Any) -> RunFacts:
    lives = [Life(0, 1)]
    return run_facts(tables(lives, [Teller(lives)]), **changes)


def split_of(requests: Columns, **changes: Any) -> Any:
    n = len(requests["ttft_s"])
    result = time_split(requests, Window(0.0, 1.0, 1.0, "last arrival", np.ones(n, np.bool_)), facts(**changes))
    return result and result.facts()


def requests(n: int = 200, **parts: Any) -> Columns:
    """Alike, but for the parts that are given: 0.1 s of prefill, nine gaps of 20 ms that are all decode."""
    result = {name: np.zeros(n) for name in PARTS}
    result |= {"prefill_s": np.full(n, 0.1), "decode_s": np.full(n, 0.18)}
    result |= {name: np.array(values, np.float64) for name, values in parts.items()}
    after = sum(result[name] for name in ("decode_s", "interference_s", "preempted_s", "recompute_s", "link_s"))
    e2e_s = sum(result.values())
    first_s = e2e_s - after
    status = Categorical(np.zeros(n, np.int32), ("finished",))
    times = {"first_token_s": first_s, "finish_s": e2e_s, "ttft_s": first_s, "e2e_s": e2e_s, "tpot_s": after / 9}
    return result | times | {"output_tokens": np.full(n, 10), "status": status, "transfer_s": result["link_s"]}


def late(seconds: float, n: int = 200, n_late: int = 2) -> list[float]:
    return [seconds] * n_late + [0.0] * (n - n_late)


def test_the_slowest_hundredth_by_each_latency_is_set_beside_all() -> None:
    result = split_of(requests(queue_seats_s=late(3.0), interference_s=late(0.9)[::-1]))
    assert result["parts"] == list(PARTS)
    assert result["mean"]["queue_seats_s"] == pytest.approx(0.03)
    ttft, tpot, e2e = (result["slowest"][name] for name in ("ttft_s", "tpot_s", "e2e_s"))
    assert (ttft["n"], ttft["from_s"], ttft["binds"]) == (2, pytest.approx(3.1), "queue_seats_s")
    assert {name: s for name, s in ttft["mean"].items() if s} == pytest.approx({"queue_seats_s": 3.0, "prefill_s": 0.1})
    assert (tpot["n"], tpot["binds"]) == (2, "interference_s")
    assert {name: s for name, s in tpot["mean"].items() if s} == pytest.approx(
        {"decode_s": 0.02, "interference_s": 0.1}
    )
    assert tpot["all"]["interference_s"] == pytest.approx(0.001)
    assert e2e["binds"] == "queue_seats_s"
    assert sum(e2e["mean"].values()) == pytest.approx(3.28)


def test_one_request_is_its_own_slowest_and_nothing_sets_it_apart() -> None:
    result = split_of(requests(1))
    assert result["slowest"]["e2e_s"]["n"] == 1
    assert result["slowest"]["e2e_s"]["binds"] is None


def test_an_eviction_before_the_first_token_counts_there_and_one_after_it_does_not() -> None:
    before, after = (requests(1, preempted_s=[0.5], recompute_s=[0.25]) for _ in range(2))
    before["ttft_s"] = before["first_token_s"] = before["ttft_s"] + 0.75
    before["tpot_s"] = before["tpot_s"] - 0.75 / 9
    of_before, of_after = (split_of(each)["slowest"] for each in (before, after))
    parts = ("preempted_s", "recompute_s")
    assert [of_before["ttft_s"]["mean"][name] for name in parts] == pytest.approx([0.5, 0.25])
    assert [of_before["tpot_s"]["mean"][name] for name in parts] == pytest.approx([0.0, 0.0])
    assert [of_after["ttft_s"]["mean"][name] for name in parts] == [0.0, 0.0]
    assert [of_after["tpot_s"]["mean"][name] * 9 for name in parts] == pytest.approx([0.5, 0.25])


@pytest.mark.parametrize("seed", range(20))
def test_rounding_makes_no_part_negative(seed: int) -> None:
    waited_s, recomputed_s = np.random.default_rng(seed).uniform(0, 1, (2, 1)).round(12)
    evicted = requests(1, preempted_s=waited_s, recompute_s=recomputed_s)
    evicted["ttft_s"] = evicted["first_token_s"] = evicted["ttft_s"] + waited_s + recomputed_s
    slowest = split_of(evicted)["slowest"]
    assert min(part for name in ("ttft_s", "tpot_s") for part in slowest[name]["mean"].values()) >= 0


def test_room_on_the_decode_side_comes_first_where_keys_and_values_are_pushed() -> None:
    link = LinkFacts(1.0, 0.0, False, 1.0, "push")
    pushed = split_of(requests(1, transfer_wait_s=[0.4]), link=link)["slowest"]
    assert pushed["ttft_s"]["mean"]["transfer_wait_s"] == pytest.approx(0.4)
    assert sum(pushed["ttft_s"]["mean"].values()) == pytest.approx(0.5)


def test_the_notice_of_room_comes_before_the_first_token_and_the_keys_and_values_after_it() -> None:
    link = LinkFacts(1.0, 0.1, False, 1.0, "push")
    pushed = requests(1, link_s=[0.3]) | {"transfer_s": np.array([0.2])}
    pushed |= {"first_token_s": pushed["first_token_s"] + 0.1, "ttft_s": pushed["ttft_s"] + 0.1}
    pushed["tpot_s"] = pushed["tpot_s"] - 0.1 / 9
    slowest = split_of(pushed, link=link)["slowest"]
    ttft, tpot = ({name: s for name, s in slowest[of]["mean"].items() if s} for of in ("ttft_s", "tpot_s"))
    assert ttft == pytest.approx({"prefill_s": 0.1, "link_s": 0.1})
    assert tpot == pytest.approx({"decode_s": 0.02, "link_s": 0.2 / 9})


def test_whole_answers_have_all_of_it_before_their_first_token() -> None:
    whole = requests(1, batch_wait_s=[1.0])
    whole |= {"first_token_s": whole["finish_s"], "ttft_s": whole["e2e_s"], "tpot_s": np.zeros(1)}
    result = split_of(whole)["slowest"]
    assert sum(result["ttft_s"]["mean"].values()) == pytest.approx(1.28)
    assert sum(result["tpot_s"]["mean"].values()) == 0.0


def test_a_nanosecond_counts_and_less_is_rounding() -> None:
    parts = requests(1, decode_s=[1e-9], interference_s=[0.9e-9]) | {"output_tokens": np.array([2])}
    tpot = split_of(parts | {"tpot_s": np.array([1.9e-9])})["slowest"]["tpot_s"]
    assert (tpot["mean"]["decode_s"], tpot["mean"]["interference_s"]) == (1e-9, 0.0)


def test_answers_of_one_token_have_no_gaps_to_be_slow_in() -> None:
    single = requests(1)
    single |= {"tpot_s": np.array([np.nan]), "output_tokens": np.array([1])}
    assert split_of(single)["slowest"]["tpot_s"] is None


def test_nothing_is_told_where_nothing_finished_or_nobody_has_split_the_time() -> None:
    nobody = requests(1) | {"status": Categorical(np.zeros(1, np.int32), ("rejected",))}
    assert split_of(nobody) is None
    assert split_of(requests(1, decode_s=[np.nan])) is None
