"""Prefix structures: shared prefixes, by hand; arrivals and lengths stay the same with or without them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simserve.errors import PolicyError
from simserve.workload.draws import draw_prefixes, generate
from simserve.workload.info import sharing
from simserve.workload.lengths.fixed import Fixed
from simserve.workload.load import offered_load
from simserve.workload.prefixes.base import DrawLengths, PrefixStructure, prefixed
from simserve.workload.prefixes.conversations import Conversations
from simserve.workload.prefixes.documents import Documents
from simserve.workload.prefixes.shared import Shared
from simserve.workload.streams import Stream, streams
from simserve.workload.trace import Prefixes, Trace
from tests.workload.test_prefix_ids import prefixes, rows_of
from tests.workload.test_sharing import hit_tokens

POISSON = {"kind": "poisson", "rate_per_s": 8}
LENGTHS = {"kind": "uniform", "prompt_tokens": [1, 100], "output_tokens": [1, 100]}
SPECS: dict[str, Any] = {
    "shared": {"kind": "shared", "prefix_tokens": [100, 40], "weights": [1, 3]},
    "documents": {"kind": "documents", "n_documents": 20, "document_tokens": [10, 500], "system_tokens": 40},
    "conversations": {"kind": "conversations", "turns": [1, 6], "think_s": {"mean": 3}, "system_tokens": 40},
}


def drawn(structure: PrefixStructure, start_s: list[float], new: int = 20, answer: int = 12, **end: Any) -> Trace:
    """Draw requests with a fixed new part and output."""
    lengths = Fixed(prompt_tokens=new, output_tokens=answer)
    return draw_prefixes(structure, np.array(start_s), end.get("duration_s"), lengths, streams(0))


@pytest.mark.parametrize("kind", SPECS)
def test_neither_arrivals_nor_lengths_change_with_prefixes(kind: str) -> None:
    plain = generate(POISSON, LENGTHS, n_requests=500)
    result = generate(POISSON, LENGTHS, prefixes=SPECS[kind], n_requests=500)
    assert len(result) == 500
    assert result.output_tokens.tolist() == plain.output_tokens.tolist()
    assert (result.prompt_tokens >= plain.prompt_tokens).all()
    begin = result.arrival_s if result.turn is None else result.arrival_s[result.turn == 1]
    assert begin.tolist() == plain.arrival_s[: len(begin)].tolist()


@pytest.mark.parametrize("kind", SPECS)
def test_fewer_requests_are_the_first_of_more(kind: str) -> None:
    few, many = (generate(POISSON, LENGTHS, prefixes=SPECS[kind], n_requests=n) for n in (300, 3000))
    first = many.take(slice(300))
    for name in ("arrival_s", "prompt_tokens", "output_tokens", "session_id", "turn"):
        mine, theirs = getattr(few, name), getattr(first, name)
        assert (mine is None and theirs is None) or mine.tolist() == theirs.tolist()
    assert hit_tokens(few).tolist() == hit_tokens(first).tolist()


@pytest.mark.parametrize("kind", SPECS)
def test_ids_are_chained_and_within_prompt_and_answer(kind: str) -> None:
    trace = generate(POISSON, LENGTHS, prefixes=SPECS[kind], n_requests=400)
    before: dict[int, int | None] = {}
    whole = (trace.prompt_tokens + trace.output_tokens) // 16
    for row, most in zip(rows_of(trace.prefixes), whole.tolist(), strict=True):
        assert len(row) <= most
        for last, block in zip([None, *row], row, strict=False):
            assert before.setdefault(block, last) == last


def test_every_prompt_begins_with_a_system_prompt_of_which_whole_blocks_are_shared() -> None:
    trace = drawn(Shared(prefix_tokens=40), [0.0, 1.0])
    assert trace.prompt_tokens.tolist() == [60, 60]
    assert rows_of(trace.prefixes) == [[0, 1], [0, 1]]  # the rest of its 40 tokens shares a block with the new part


def test_system_prompts_have_lengths_and_popularities_of_their_own() -> None:
    trace = drawn(Shared(prefix_tokens=[100, 40], weights=[1, 3]), [0.0] * 20_000)
    lengths, counts = np.unique(trace.prompt_tokens - 20, return_counts=True)
    assert lengths.tolist() == [40, 100]
    assert counts.tolist() == pytest.approx([15_000, 5_000], rel=0.03)
    assert {tuple(row) for row in rows_of(trace.prefixes)} == {(0, 1, 2, 3, 4, 5), (6, 7)}


def test_system_prompts_are_as_popular_as_zipf_says() -> None:
    trace = drawn(Shared(prefix_tokens=[16, 32, 48], zipf_exponent=1.0), [0.0] * 22_000)
    counts = np.bincount(trace.prompt_tokens - 20)[[16, 32, 48]]
    assert counts.tolist() == pytest.approx([12_000, 6_000, 4_000], rel=0.04)  # 1 : 1/2 : 1/3


def test_larger_blocks_share_less() -> None:
    assert rows_of(drawn(Shared(prefix_tokens=100, block_tokens=64), [0.0]).prefixes) == [[0]]


def test_a_document_has_one_length_and_one_chain_after_the_system_prompt() -> None:
    structure = Documents(n_documents=3, document_tokens=(16, 160), zipf_exponent=0.0, system_tokens=40)
    trace = drawn(structure, [0.0] * 50)
    chains = {tuple(row) for row in rows_of(trace.prefixes)}
    assert len(chains) == len(set(trace.prompt_tokens.tolist())) == 3
    assert {chain[:2] for chain in chains} == {(0, 1)}  # 40 tokens are two whole blocks
    own = [block for chain in chains for block in chain[2:]]
    assert len(own) == len(set(own))
    assert {len(chain) for chain in chains} == {(n - 20) // 16 for n in trace.prompt_tokens.tolist()}


def test_each_turn_begins_with_all_that_was_said_before() -> None:
    # Turns of 20 new tokens and 12 of output; another conversation begins at 5 s.
    trace = drawn(Conversations(turns=3, think_s=10.0), [0.0, 5.0, 100.0, 200.0, 300.0, 400.0])
    assert trace.arrival_s.tolist() == [0, 5, 10, 15, 20, 25]
    assert trace.session_id is not None and trace.turn is not None
    assert trace.session_id.tolist() == ["0", "1", "0", "1", "0", "1"]
    assert trace.turn.tolist() == [1, 1, 2, 2, 3, 3]
    assert trace.prompt_tokens.tolist() == [20, 20, 52, 52, 84, 84]
    # 32 and 64 tokens of history: ids 0-3 for one, 4-7 for the other; the last turn's own text has no ids
    assert rows_of(trace.prefixes) == [[0, 1], [4, 5], [0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3], [4, 5, 6, 7]]
    assert hit_tokens(trace).tolist() == [0, 0, 32, 32, 64, 64]


def test_a_conversation_begins_with_the_system_prompt_that_all_have() -> None:
    trace = drawn(Conversations(turns=2, think_s=10.0, system_tokens=40), [0.0, 5.0, 50.0, 60.0])
    assert trace.prompt_tokens.tolist() == [60, 60, 92, 92]
    assert rows_of(trace.prefixes) == [[0, 1, 2, 3], [0, 1, 4, 5], [0, 1, 2, 3], [0, 1, 4, 5]]  # 72 tokens of history
    assert hit_tokens(trace).tolist() == [0, 32, 64, 64]


def test_a_single_turn_shares_nothing_but_the_system_prompt() -> None:
    assert rows_of(drawn(Conversations(turns=1, think_s=0.0), [0.0, 1.0]).prefixes) == [[], []]
    assert rows_of(drawn(Conversations(turns=1, think_s=0.0, system_tokens=16), [0.0, 1.0]).prefixes) == [[0], [0]]


def test_a_prompt_that_would_be_too_long_begins_anew() -> None:
    structure = Conversations(turns=4, think_s=1.0, system_tokens=16, max_prompt_tokens=70)
    trace = drawn(structure, [0.0, 100.0, 200.0, 300.0])
    assert trace.prompt_tokens.tolist() == [36, 68, 36, 68]  # the third would have 100
    assert rows_of(trace.prefixes) == [[0, 1, 2], [0, 1, 2], [0, 3, 4], [0, 3, 4]]


def test_what_comes_after_the_end_is_not_sent() -> None:
    trace = drawn(Conversations(turns=5, think_s=10.0), [0.0, 5.0], duration_s=21.0)
    assert trace.arrival_s.tolist() == [0, 5, 10, 15, 20]


def test_a_closed_loop_draws_on_where_it_stopped() -> None:
    lengths = {"kind": "uniform", "prompt_tokens": [1, 100], "output_tokens": [1, 100]}
    given = {"arrivals": None, "trace": None, "lengths": lengths, "prefixes": SPECS["documents"], "max_tokens": None}
    until = {"client": {"concurrency": 5}, "n_requests": None, "duration_s": 60.0, "drain_limit_s": None}
    labels: dict[str, Any] = {"classes": {}, "tenants": {}, "batch": None}
    load = offered_load(SimpleNamespace(is_replayed=False, **given, **until, **labels), 0, None)  # type: ignore[arg-type]
    assert load.draw_more is not None and load.trace.prefixes is not None
    n = len(load.trace)
    more = load.draw_more(n).prefixes
    assert more is not None and len(more) == n
    mine = {row[-1]: row for row in rows_of(load.trace.prefixes)}
    assert all(mine.get(row[-1], row) == row for row in rows_of(more))  # the same documents have the same ids


@pytest.mark.parametrize("kind", SPECS)
def test_a_million_requests_are_drawn_without_work_for_each_token(kind: str) -> None:
    n = 1_000_000
    spec = SPECS[kind] | ({"turns": 5} if kind == "conversations" else {})
    result = generate(
        POISSON, {"kind": "fixed", "prompt_tokens": 5000, "output_tokens": 300}, prefixes=spec, n_requests=n
    )
    assert len(result) == n
    assert result.prefixes is not None
    assert len(result.prefixes.first_ids) <= 2 * n  # runs, whatever the number of tokens


# -- plug-ins of users -------------------------------------------------------------------------------------------------


class Theirs(PrefixStructure):
    """Returns a given trace."""

    def __init__(self, **columns: Any) -> None:
        self.columns = columns

    def draw(
        self, arrival_s: NDArray[np.float64], duration_s: float | None, lengths: DrawLengths, stream: Stream
    ) -> Trace:
        lengths_of_all = lengths(len(arrival_s))
        trace = prefixed(arrival_s, lengths_of_all, np.zeros(len(arrival_s), np.int64), prefixes(*[[0]] * 3))
        return Trace(**(vars(trace) | self.columns))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"prompt_tokens": np.array([1, 0, 1])}, "prompt_tokens must be whole and in [1, 10000000], got 0 in row 1"),
        ({"prompt_tokens": np.array([1, 2 * 10**7, 1])}, "got 20000000 in row 1"),
        ({"arrival_s": np.array([0.0, 2.0, 1.0])}, "instants must never decrease, got 1.0 in row 2"),
        ({"arrival_s": np.array([0.0])}, "must return 3 requests, got 1"),
        ({"prefixes": None}, "must return a Trace with Prefixes, got None"),
        ({"prefixes": prefixes([0])}, "must return prefixes of 3 requests, got 1"),
        ({"prefixes": prefixes([0], [0, 1, 2], [])}, "more ids than its prompt and answer have whole blocks, got row"),
    ],
)  # fmt: skip
def test_prefixes_that_cannot_be_are_the_plug_ins_mistake(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(PolicyError, match=r"Theirs\.draw") as error:
        drawn(Theirs(**columns), [0.0, 1.0, 2.0])
    assert text in str(error.value)


def test_what_is_right_is_taken_as_it_is() -> None:
    result = sharing(drawn(Theirs(), [0.0, 1.0, 2.0]))
    assert result is not None
    assert result["hit_frac"] == pytest.approx(32 / 60)
    assert isinstance(drawn(Theirs(), [0.0, 1.0, 2.0]).prefixes, Prefixes)
