"""Loads with requests that wait for answers: turns, agents and users drawn, recorded sessions replayed."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simserve.errors import PolicyError, TraceError
from simserve.workload.draws import draw_prefixes, generate
from simserve.workload.lengths.fixed import Fixed
from simserve.workload.load import Load, offered_load
from simserve.workload.prefixes.agents import Agents, Threads
from simserve.workload.prefixes.base import PrefixStructure
from simserve.workload.prefixes.conversations import Conversations
from simserve.workload.readers.simserve import write_trace
from simserve.workload.streams import streams
from simserve.workload.trace import Trace
from tests.workload.test_prefix_ids import rows_of

POISSON = {"kind": "poisson", "rate_per_s": 8}
LENGTHS = {"kind": "uniform", "prompt_tokens": [1, 100], "output_tokens": [1, 100]}
SPECS: dict[str, Any] = {
    "conversations": {
        "kind": "conversations",
        "turns": [1, 6],
        "think_s": {"mean": 3},
        "system_tokens": 40,
        "next_turn": "after_answer",
        "max_prompt_tokens": 400,
    },
    "agents": {
        "kind": "agents",
        "steps": [1, 6],
        "tool_s": {"mean": 3},
        "fan_out_frac": 0.4,
        "branches": [2, 3],
        "branch_calls": [1, 3],
        "system_tokens": 40,
    },
}


def drawn(structure: PrefixStructure, start_s: list[float], **end: Any) -> Trace:
    """Draw requests of 20 new tokens and 12 of output."""
    lengths = Fixed(prompt_tokens=20, output_tokens=12)
    return draw_prefixes(structure, np.array(start_s), end.get("duration_s"), lengths, streams(0))


def parents(trace: Trace) -> list[list[int]]:
    """Return the rows that each row waits for."""
    result = trace.dependencies
    assert result is not None
    return [result.parents[a:b].tolist() for a, b in zip(result.starts[:-1], result.starts[1:], strict=True)]


def test_turns_follow_one_another_conversation_by_conversation() -> None:
    trace = drawn(Conversations(turns=2, think_s=10.0, next_turn="after_answer"), [0.0, 5.0, 7.0, 9.0, 11.0])
    assert trace.session_id is not None and trace.turn is not None and trace.dependencies is not None
    assert trace.session_id.tolist() == ["0", "0", "1", "1", "2"]
    assert trace.turn.tolist() == [1, 2, 1, 2, 1]
    assert trace.arrival_s.tolist() == [0, 0, 5, 5, 7]  # a later turn has the start of its conversation
    assert parents(trace) == [[], [0], [], [2], []]
    assert trace.dependencies.think_s.tolist() == [10.0] * 5
    assert trace.prompt_tokens.tolist() == [20, 52, 20, 52, 20]
    assert rows_of(trace.prefixes) == [[0, 1], [0, 1], [2, 3], [2, 3], []]


def test_a_conversation_has_all_its_turns_where_the_load_ends_by_time() -> None:
    trace = drawn(Conversations(turns=3, think_s=10.0, next_turn="after_answer"), [0.0, 5.0], duration_s=6.0)
    assert parents(trace) == [[], [0], [1], [], [3], [4]]


def test_an_agent_branches_out_and_joins_with_all_answers_in_its_prompt() -> None:
    structure = Agents(steps=3, tool_s=1.0, fan_out_frac=1.0, branches=2, branch_calls=2, system_tokens=40)
    trace = drawn(structure, [4.0], duration_s=5.0)
    # A step, two branches of two calls each, a step, two branches, the last step.
    assert parents(trace) == [[], [0], [1], [0], [3], [2, 4], [5], [6], [5], [8], [7, 9]]
    # 40 + 20; the context is then 72, and each branch continues from there; the join has 72 + two answers of 12 + 20.
    assert trace.prompt_tokens.tolist() == [60, 92, 124, 92, 124, 116, 148, 180, 148, 180, 172]
    first, second = [0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7]  # 72 and 128 tokens of the main thread
    own = [[8, 9], [10, 11], [12, 13], [14, 15]]
    assert rows_of(trace.prefixes) == [
        first, *[first + own[0]] * 2, *[first + own[1]] * 2,
        second, *[second + own[2]] * 2, *[second + own[3]] * 2,
        second,
    ]  # fmt: skip
    assert trace.turn is not None and trace.turn.tolist() == list(range(1, 12))
    assert set(trace.arrival_s.tolist()) == {4.0}


def test_an_agent_without_branches_is_a_chain() -> None:
    trace = drawn(Agents(steps=3, tool_s=1.0), [0.0, 1.0, 2.0, 3.0])
    assert parents(trace) == [[], [0], [1], []]
    assert trace.prompt_tokens.tolist() == [20, 52, 84, 20]


@pytest.mark.parametrize("kind", SPECS)
def test_fewer_requests_are_the_first_of_more(kind: str) -> None:
    few, many = (generate(POISSON, LENGTHS, prefixes=SPECS[kind], n_requests=n) for n in (300, 3000))
    assert few.dependencies is not None and few.session_id is not None
    first = many.take(slice(300))
    for name in ("arrival_s", "prompt_tokens", "output_tokens", "session_id", "turn"):
        assert getattr(few, name).tolist() == getattr(first, name).tolist()
    assert parents(few) == parents(first)
    whole = few.session_id != few.session_id[-1]  # the last session is cut short, so less of it is shared
    assert rows_of(few.take(np.flatnonzero(whole)).prefixes) == rows_of(first.take(np.flatnonzero(whole)).prefixes)


@pytest.mark.parametrize("kind", SPECS)
def test_ids_are_chained_and_within_prompt_and_answer(kind: str) -> None:
    trace = generate(POISSON, LENGTHS, prefixes=SPECS[kind], n_requests=400)
    before: dict[int, int | None] = {}
    for row, most in zip(
        rows_of(trace.prefixes), ((trace.prompt_tokens + trace.output_tokens) // 16).tolist(), strict=True
    ):
        assert len(row) <= most
        for last, block in zip([None, *row], row, strict=False):
            assert before.setdefault(block, last) == last


@pytest.mark.parametrize("kind", SPECS)
def test_neither_arrivals_nor_lengths_change_with_sessions(kind: str) -> None:
    plain = generate(POISSON, LENGTHS, n_requests=500)
    result = generate(POISSON, LENGTHS, prefixes=SPECS[kind], n_requests=500)
    assert result.output_tokens.tolist() == plain.output_tokens.tolist()
    begin = result.arrival_s[result.turn == 1]
    assert begin.tolist() == plain.arrival_s[: len(begin)].tolist()


def test_half_a_million_calls_of_agents_are_drawn_in_seconds() -> None:
    assert len(generate(POISSON, LENGTHS, prefixes=SPECS["agents"], n_requests=500_000)) == 500_000


def test_the_answers_of_calls_that_nobody_awaits_are_nobodys() -> None:
    threads = Threads()
    main = threads.begin()
    call = threads.call(main, [])
    threads.call(threads.begin(call), [call])
    threads.call(main, [call])
    prompts, _ = threads.grown(Fixed(prompt_tokens=5, output_tokens=3).draw(3, streams(0)), 10, 4)
    assert prompts.tolist() == [15, 23, 23]


# -- users -------------------------------------------------------------------------------------------------------------


NO_LABELS: dict[str, Any] = {"classes": {}, "tenants": {}, "batch": None}


def users(n_requests: int | None, duration_s: float | None = None, **more: Any) -> Load:
    """Return the load of five users."""
    given = {"arrivals": None, "trace": None, "lengths": LENGTHS, "prefixes": None, "max_tokens": None}
    client = {"concurrency": 5, **({"think_s": more.pop("think_s")} if "think_s" in more else {})}
    until = {"client": client, "n_requests": n_requests, "duration_s": duration_s, "drain_limit_s": None}
    return offered_load(SimpleNamespace(is_replayed=False, **(given | until | NO_LABELS | more)), 0, Path())


def test_users_of_single_requests_think_between_them() -> None:
    load = users(100, think_s={"mean": 4})
    result = load.trace.dependencies
    assert result is not None and not len(result.parents)
    assert result.think_s.mean() == pytest.approx(4, rel=0.3)
    assert users(100).trace.dependencies is None  # no think time: as public benchmarks run it


def test_users_think_between_sessions_and_within_them() -> None:
    spec = SPECS["conversations"] | {"think_s": 1.0}
    for client, between_s in (({"think_s": 7.0}, 7.0), ({}, 0.0)):
        result = users(200, prefixes=spec, **client).trace.dependencies
        assert result is not None
        assert set(result.think_s[result.n_parents == 0]) == {between_s}
        assert set(result.think_s[result.n_parents > 0]) == {1.0}


@pytest.mark.parametrize("kind", SPECS)
def test_users_who_go_on_for_a_time_are_given_whole_sessions(kind: str) -> None:
    load = users(None, 60.0, prefixes=SPECS[kind], think_s={"mean": 4})
    assert load.draw_more is not None and load.stop_sending_s == 60
    n = len(load.trace)
    more = load.draw_more(n)
    both = users(n + len(more) + 50, prefixes=SPECS[kind], think_s={"mean": 4}).trace
    assert both.dependencies is not None and more.dependencies is not None
    assert both.dependencies.n_parents[n] == both.dependencies.n_parents[n + len(more)] == 0
    second = both.take(np.arange(n, n + len(more)))
    assert second.dependencies is not None
    assert more.prompt_tokens.tolist() == second.prompt_tokens.tolist()
    assert more.dependencies.think_s.tolist() == second.dependencies.think_s.tolist()
    assert parents(more) == parents(second)
    assert rows_of(more.prefixes) == rows_of(second.prefixes)


# -- recorded sessions -------------------------------------------------------------------------------------------------

OURS = """arrival_s,prompt_tokens,output_tokens,session_id,turn,e2e_s
0,10,5,a,1,2
1,10,5,b,1,9
6,20,5,a,2,1
7,10,5,,1,
8,20,5,b,2,
"""


def replayed(path: Path, text: str, **given: Any) -> Trace:
    """Return a file's load with turns after answers."""
    path.write_text(text)
    file = {"path": str(path), "format": "auto", "rate_scale": 1.0, "spread": "none", "next_turn": "after_answer"}
    workload = {"n_requests": None, "duration_s": None, "max_tokens": None, "drain_limit_s": None, "client": None}
    spec = SimpleNamespace(columns={}, max_gap_s=None, **(file | given))
    return offered_load(
        SimpleNamespace(trace=spec, arrivals=None, is_replayed=True, **workload, **NO_LABELS), 0, path.parent
    ).trace


def test_recorded_turns_follow_their_answers_as_long_after_as_they_did(tmp_path: Path) -> None:
    trace = replayed(tmp_path / "a.csv", OURS)
    assert parents(trace) == [[], [], [0], [], [1]]
    assert trace.dependencies is not None
    assert trace.dependencies.think_s.tolist() == [0, 0, 4, 0, 0]  # 6 - 0 - 2; 8 came before 1 + 9
    assert trace.notes == ("1 of 2 turns came before the answer to the one before; they follow it at once",)


def test_a_faster_replay_begins_sessions_sooner_and_lets_people_think_as_long(tmp_path: Path) -> None:
    trace = replayed(tmp_path / "a.csv", OURS, rate_scale=2.0)
    assert trace.arrival_s.tolist() == [0, 0.5, 3, 3.5, 4]
    assert trace.dependencies is not None and trace.dependencies.think_s[2] == 4


def test_burstgpt_tells_sessions_and_how_long_answers_took(tmp_path: Path) -> None:
    head = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    log = (
        "5,7,3,ChatGPT,10,5,15,Conversation log",
        "20,7,2,GPT-4,30,5,35,Conversation log",
        "21,,1,GPT-4,9,9,18,API log",
    )
    trace = replayed(tmp_path / "b.csv", head + "\n".join(log))
    assert parents(trace) == [[], [0], []]
    assert trace.dependencies is not None and trace.dependencies.think_s.tolist() == [0, 12, 0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (OURS.replace("session_id", "who"), "needs to know which requests are of one session"),
        (OURS.replace("e2e_s", "took"), "needs to know how long answers took ('Elapsed time' of BurstGPT, e2e_s"),
        (OURS.replace("a,1,2", "a,1,"), "got nothing for the request of session 'a' that came after 0 s; 1 in all"),
        (
            OURS.replace("a,2,1", "a,1,1"),
            "needs turns that rise in the order of their arrival, got turn 1 of session 'a'",
        ),
    ],
)
def test_files_that_do_not_tell_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(TraceError, match=r"a\.csv: workload\.trace\.next_turn: after_answer needs") as error:
        replayed(tmp_path / "a.csv", text)
    assert sentence in str(error.value)


# -- plug-ins of users -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"parents": np.array([1])}, "a request must wait only for earlier ones, got 1 in row 0"),
        ({"parents": np.array([-1])}, "a request must wait only for earlier ones, got -1 in row 0"),
        ({"think_s": np.array([0.0, -1.0, 0.0])}, "think_s must be finite and not negative, got -1.0 in row 1"),
        ({"think_s": np.zeros(2)}, "must return dependencies of 3 requests, got 2"),
        ({"starts": np.array([0, 0, 2, 1])}, "starts must rise from 0 to the 1 parents"),
        (
            {"parents": np.array([0, 1]), "starts": np.array([0, 0, 0, 2])},
            "a request must not wait for two sessions",
        ),
        ({"parents": np.array([0.5])}, "parents must be whole numbers"),
        (None, "dependencies must be Dependencies, got none"),
    ],
)
def test_dependencies_that_cannot_be_are_the_plug_ins_mistake(changes: dict[str, Any] | None, sentence: str) -> None:
    class Theirs(Conversations):
        def draw(self, *args: Any) -> Trace:
            trace = super().draw(*args)
            assert trace.dependencies is not None
            wrong: Any = "none" if changes is None else replace(trace.dependencies, **changes)
            return replace(trace, dependencies=wrong)

    with pytest.raises(PolicyError, match=r"Theirs\.draw") as error:
        drawn(Theirs(turns=2, think_s=1.0, next_turn="after_answer"), [0.0, 1.0, 2.0])
    assert sentence in str(error.value)


def test_a_row_cannot_be_taken_without_those_it_waits_for() -> None:
    trace = drawn(Conversations(turns=2, think_s=1.0, next_turn="after_answer"), [0.0, 1.0, 2.0, 3.0])
    assert parents(trace.take(np.array([2, 3, 0]))) == [[], [0], []]
    with pytest.raises(ValueError, match="without the rows that it waits for"):
        trace.take(np.array([1]))


def test_a_trace_file_cannot_hold_what_waits_for_answers(tmp_path: Path) -> None:
    trace = drawn(Agents(steps=3, tool_s=1.0), [0.0])
    with pytest.raises(TraceError, match="its requests cannot wait for answers; give next_turn: after_arrival"):
        write_trace(trace, tmp_path / "a.csv")


def test_what_an_answer_took_is_kept_when_a_trace_is_converted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(OURS)
    write_trace(replace(replayed(tmp_path / "a.csv", OURS), dependencies=None), tmp_path / "b.csv")
    assert parents(replayed(tmp_path / "b.csv", (tmp_path / "b.csv").read_text())) == [[], [], [0], [], [1]]
