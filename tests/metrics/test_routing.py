"""How evenly requests were spread, by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.metrics.routing import routing
from simserve.metrics.window import Window
from simserve.tables.columns import Columns
from simserve.tables.facts import MemberFacts, RunFacts
from tests.metrics.stories import Life, Teller, run_facts, tables

NAN = np.nan


def facts(n_replicas: int, roles: tuple[str, ...] = ("both",)) -> RunFacts:
    known = run_facts(tables([Life(0, 1)], [Teller([Life(0, 1)])]), end_s=20.0)
    pools = tuple(replace(known.pools[0], role=role) for role in roles)
    return replace(known, pools=pools, replica_pool=tuple(i % len(roles) for i in range(n_replicas)))


def served(*rows: tuple[float, float, int], sessions: list[str] | None = None) -> Columns:
    """(arrival, finish, replica) of each request."""
    arrival_s, finish_s, replica = (np.array(column) for column in zip(*rows, strict=True))
    return {
        "arrival_s": arrival_s,
        "finish_s": finish_s,
        "first_token_s": finish_s,
        "replica": replica.astype(np.int32),
        "gave_up_s": np.full(len(rows), NAN),
        "prefill_replica": np.full(len(rows), -1, np.int32),
        "session_id": None if sessions is None else np.array(sessions),
    }


def window(start_s: float, end_s: float, requests: Columns) -> Window:
    return Window(start_s, end_s, end_s - start_s, "last arrival", requests["arrival_s"] >= start_s)


def result(requests: Columns, start_s: float = 0.0, end_s: float = 10.0, n_replicas: int = 2) -> Any:
    text = routing(requests, window(start_s, end_s, requests), facts(n_replicas))
    assert text is not None
    return text.facts()


def test_where_there_is_no_choice_there_is_nothing_to_say() -> None:
    requests = served((0.0, 10.0, 0))
    assert routing(requests, window(0.0, 10.0, requests), facts(1)) is None
    assert routing(requests, window(0.0, 10.0, requests), facts(2, ("prefill", "decode"))) is None


def test_replicas_that_always_have_as_many_are_not_apart() -> None:
    assert result(served((0.0, 10.0, 0), (0.0, 10.0, 1)))["outstanding_std"] == 0.0


def test_prompts_that_decode_replicas_compute_themselves_are_not_the_routers() -> None:
    """Of two prefill and two decode replicas one each has a request all along."""
    requests = served((0.0, 10.0, 0), (0.0, 10.0, 1))
    text = routing(requests, window(0.0, 10.0, requests), facts(4, ("prefill", "decode")))
    assert text is not None
    assert text.outstanding_std == pytest.approx(0.5)
    assert text.busiest_frac == 1.0


def test_the_spread_is_a_root_mean_square_over_the_window() -> None:
    """Two against none for half of the window, which is a variance of 1; and once more from before the window on."""
    requests = served((0.0, 5.0, 0), (0.0, 5.0, 0))
    assert result(requests)["outstanding_std"] == pytest.approx(0.5**0.5)
    earlier = served((-3.0, 5.0, 0), (0.0, 5.0, 0), (-2.0, -1.0, 1))
    assert result(earlier)["outstanding_std"] == pytest.approx(0.5**0.5)
    unfinished = served((5.0, NAN, 1), (5.0, 12.0, 1))
    assert result(unfinished)["outstanding_std"] == pytest.approx(0.5**0.5)
    given_up = served((0.0, NAN, 0), (0.0, NAN, 0)) | {"gave_up_s": np.array([5.0, 5.0])}
    assert result(given_up)["outstanding_std"] == pytest.approx(0.5**0.5)


def test_the_spread_agrees_with_counting_at_many_instants() -> None:
    stream = np.random.default_rng(3)
    n = 200
    arrival_s = np.sort(stream.uniform(-2.0, 10.0, n))
    rows = zip(arrival_s, arrival_s + stream.exponential(1.5, n), stream.integers(0, 5, n), strict=True)
    requests = served(*rows)
    instants_s = (np.arange(40_000) + 0.5) / 4_000
    there = (requests["arrival_s"][:, None] <= instants_s) & (requests["finish_s"][:, None] > instants_s)
    counts = np.stack([there[requests["replica"] == i].sum(axis=0) for i in range(5)])
    expected = np.sqrt(counts.var(axis=0).mean())
    assert result(requests, n_replicas=5)["outstanding_std"] == pytest.approx(expected, rel=1e-3)


def test_a_window_counts_from_its_start_and_without_length_has_no_spread() -> None:
    """Two against none for 0.1 of the 0.5 s from 9.5 s on."""
    requests = served((0.0, 9.6, 0), (0.0, 9.6, 0))
    assert result(requests, start_s=9.5)["outstanding_std"] == pytest.approx(0.2**0.5)
    assert result(requests, start_s=10.0)["outstanding_std"] is None


def test_the_busiest_replica_and_who_was_refused() -> None:
    requests = served((0.0, 1.0, 0), (1.0, 2.0, 1), (2.0, 3.0, 1), (3.0, NAN, -1))
    assert result(requests)["busiest_frac"] == pytest.approx(2 / 3)


def test_prompts_are_where_they_are_computed_until_their_first_token() -> None:
    requests = served((0.0, 10.0, 1), (0.0, 10.0, 3)) | {
        "prefill_replica": np.array([0, 0], np.int32),
        "first_token_s": np.array([5.0, 5.0]),
    }
    text: Any = routing(requests, window(0.0, 10.0, requests), facts(4, ("prefill", "decode")))
    assert (text.busiest_frac, text.outstanding_std) == (1.0, pytest.approx(0.5**0.5))


def test_a_session_is_kept_where_its_request_before_went() -> None:
    rows = [(float(i), 20.0, place) for i, place in enumerate([0, 1, 0, 0, 1, 1])]
    requests = served(*rows, sessions=["a", "a", "b", "a", "", "b"])
    assert result(requests)["session_kept_frac"] == 0.0  # a: 0, 1, 0; b: 0, 1
    requests = served(*rows, sessions=["a", "b", "a", "a", "", "b"])
    assert result(requests)["session_kept_frac"] == 1.0
    assert result(requests, start_s=2.5)["session_kept_frac"] == 1.0
    assert result(served(*rows))["session_kept_frac"] is None
    requests = served(*rows, sessions=["a", "b", "", "a", "c", "b"])  # a: 0, 0; b: 1, 1
    assert result(requests)["session_kept_frac"] == 1.0
    requests = served(*rows, sessions=["a", "a", "", "", "b", "b"])  # a: 0, 1; b: 1, 1
    assert result(requests)["session_kept_frac"] == 0.5
    refused = served(*rows[:1], (1.0, NAN, -1), *rows[2:3], sessions=["a", "a", "a"])
    assert result(refused)["session_kept_frac"] == 1.0


def test_a_spread_needs_replicas_that_stay() -> None:
    requests = served((0.0, 10.0, 0), (1.0, 10.0, 1))
    known = replace(facts(2), members=(MemberFacts(), MemberFacts(0.0, 4.0)))
    text = routing(requests, window(0.0, 10.0, requests), known)
    assert text is not None and text.outstanding_std is None and text.busiest_frac == 0.5
