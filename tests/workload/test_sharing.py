"""Shared prefixes of a trace, against loops and lists; and the hit rate implied by Mooncake's trace."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.state.prefix_cache import PrefixCache
from simserve.tables.columns import Ints
from simserve.workload.info import Touches, sharing
from simserve.workload.readers import read_trace
from simserve.workload.trace import Trace
from tests.doubles import plain_blocks
from tests.invariants import check_cache, n_named
from tests.workload.test_prefix_ids import prefixes

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"


def trace(prompt_tokens: list[int], *rows: list[int], output_tokens: int = 16) -> Trace:
    n = len(prompt_tokens)
    return Trace(
        np.arange(n, dtype=np.float64), np.array(prompt_tokens), np.full(n, output_tokens), prefixes=prefixes(*rows)
    )


def hit_tokens(load: Trace) -> Ints:
    assert load.prefixes is not None
    return Touches(load, load.prefixes).hit_tokens()


def test_a_prompt_hits_the_whole_blocks_that_came_before_but_never_its_last_token() -> None:
    load = trace([40, 48, 32, 33], [0, 1], [0, 1, 2], [0, 1], [0, 1])
    assert hit_tokens(load).tolist() == [0, 32, 16, 32]  # with 32 tokens the second block is computed again


def test_what_an_answer_left_is_hit_by_the_next_turn() -> None:
    assert hit_tokens(trace([20, 50], [0, 1], [0, 1], output_tokens=15)).tolist() == [0, 32]


def test_a_hit_in_the_answers_part_of_a_chain_is_no_prompt_token() -> None:
    assert hit_tokens(trace([20, 20], [0, 1], [0, 1])).tolist() == [0, 16]


def test_a_trace_without_prefixes_has_no_figures() -> None:
    assert sharing(Trace(np.zeros(2), np.array([5, 5]), np.array([1, 1]))) is None


def test_the_figures_of_a_small_trace() -> None:
    result = sharing(trace([40, 40, 80], [0, 1], [0, 1], [0, 5]))
    assert result is not None
    # Hits 0, 32 and 16 of 160 tokens. Blocks 0, 1, 5, and of the third prompt 3 whole ones without an id.
    assert (result["hit_frac"], result["requests_with_hit_frac"]) == (0.3, pytest.approx(2 / 3))
    assert (result["distinct_blocks"], result["working_set_tokens"]) == (6, 96)
    assert result["request_hit_frac"]["mean"] == pytest.approx((0 + 0.8 + 0.2) / 3)
    # The second uses 0 and 1 again after both blocks and 24 tokens without an id, the third uses 0 after as many.
    assert result["reuse_distance_tokens"] == {"p50": 56.0, "p90": 56.0, "p99": 56.0, "max": 56.0}


CHAINS = st.lists(st.lists(st.integers(0, 1), max_size=6), min_size=1, max_size=12)


@given(texts=CHAINS)
def test_hits_and_distances_are_those_of_a_loop(texts: list[list[int]]) -> None:
    ids: dict[tuple[int, ...], int] = {}
    rows = [[ids.setdefault(tuple(text[: i + 1]), 3 * len(ids)) for i in range(len(text))] for text in texts]
    load = trace([16 * len(row) + 1 for row in rows], *rows, output_tokens=15)  # 16 tokens a request without an id
    used: list[int | None] = []
    hits, distances = [], []
    for row in rows:
        before = set(used)
        hits.append(16 * sum(block in before for block in row))
        for block in row:
            if block in used:
                last = len(used) - 1 - used[::-1].index(block)
                since = used[last:]
                distances.append(16 * len(set(since) - {None}) + 16 * since.count(None))
            used.append(block)
        used.append(None)
    assert hit_tokens(load).tolist() == hits
    result = sharing(load)
    assert result is not None
    sentence = result["reuse_distance_tokens"]
    assert (sentence is None) == (not distances)
    if sentence is not None:
        assert sentence["max"] == max(distances)
        assert sentence["p50"] == np.percentile(distances, 50)


def test_an_unbounded_cache_hits_what_the_mooncake_trace_implies() -> None:
    """Once from the file with a set, once by the figures of `trace info`, and once through the cache of a replica."""
    path = TRACES / "mooncake_conversation.jsonl"
    if not path.exists():
        pytest.skip("the real traces are not beside the checkout")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    seen: set[int] = set()
    hits = []
    for row in rows:
        whole = row["hash_ids"][: row["input_length"] // 512]
        n = 0
        while n < len(whole) and whole[n] in seen and (n + 1) * 512 < row["input_length"]:
            n += 1
        hits.append(512 * n)
        seen.update(whole)
    implied = sum(hits) / sum(row["input_length"] for row in rows)

    load = read_trace(path)
    result = sharing(load)
    assert result is not None
    assert hit_tokens(load).tolist() == hits
    assert result["hit_frac"] == implied
    assert (result["distinct_blocks"], result["working_set_tokens"]) == (len(seen), 512 * len(seen))

    assert load.prefixes is not None
    cache = PrefixCache(plain_blocks(1))
    served = []
    for i, prompt_tokens in enumerate(load.prompt_tokens.tolist()):
        chain = load.prefixes.of(i)
        n = cache.match(chain, (prompt_tokens - 1) // 512)
        cache.pin(chain, n)
        cache.insert(chain, n, len(chain), set())
        cache.release(chain, len(chain), 0, set())
        served.append(512 * n)
    check_cache(cache)
    assert served == hits
    assert n_named(cache) == len(seen)
    assert implied == pytest.approx(0.373, abs=0.001)
