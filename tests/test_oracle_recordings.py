"""Engine and oracle agree on recorded sessions of agents, from random files, with every mechanism that there is."""

import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.tables.columns import Ints
from simserve.workload.readers import read_recording
from simserve.workload.replay import RecordedSessions, after_answers
from simserve.workload.streams import streams
from simserve.workload.trace import Prefixes, Trace
from tests.test_oracle_patience import admissions, patiences
from tests.test_oracle_sessions import STOPS
from tests.test_oracle_together import MEMBERS, SLOWLY, Scene, World, scenes
from tests.workload.weka import Item, call, session, subagent, written
from tests.worlds import changes, tagged

MOST_ROWS = 25
BLOCK = st.sampled_from([1, 3, 8, 16])


@st.composite
def calls(draw: st.DrawFn, unit_s: float, begins_s: float, block_tokens: int, most: int) -> list[Item]:
    """Draw requests of an agent that may overlap; prompts share beginnings, also with those of other agents."""
    result = []
    for _ in range(draw(st.integers(1, most))):
        n_in = draw(st.integers(1, 40))
        agent = draw(st.sampled_from([0, 0, 100, 200]))
        n_ids = draw(st.integers(0, -(-n_in // block_tokens)))
        ids = [block if block < 2 else agent + block for block in range(n_ids)]  # chained, whatever the agent
        api_time = draw(st.none() | st.integers(0, 9).map(lambda n: n * unit_s))
        result.append(call(begins_s, n_in, draw(st.integers(1, 30)), ids, api_time))
        begins_s += unit_s * draw(st.integers(0, 12))
    return result


@st.composite
def agents(draw: st.DrawFn, name: str, unit_s: float, block_tokens: int) -> Item:
    """Draw a session with subagents at once or not, awaited or not, with times of either kind."""
    items = draw(calls(unit_s, 0.0, block_tokens, 5))
    is_relative = draw(st.booleans())
    for _ in range(draw(st.integers(0, 3))):
        at_s = unit_s * draw(st.integers(0, 40))
        inner = draw(calls(unit_s, 0.0 if is_relative else at_s, block_tokens, 3))
        lasts_ms = draw(st.none() | st.integers(0, 40).map(lambda n: round(1e3 * n * unit_s)))
        items.append(subagent(at_s, lasts_ms, *inner))
    return session(name, *items, block_size=block_tokens)


@st.composite
def recordings(draw: st.DrawFn, n_users: int | None) -> Trace:
    """Draw a file, and the load that it becomes: at its own times, or played again and again by users or arrivals."""
    unit_s, block_tokens = draw(st.sampled_from([1e-6, 1e-3, 0.0137])), draw(BLOCK)
    names = "abcd"[: draw(st.integers(1, 4))]
    sessions = [draw(agents(name, unit_s, block_tokens)) for name in names]
    max_gap_s = draw(st.sampled_from([1e9, 5 * unit_s, 1e-6]))
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder) / "t.jsonl", *sessions)
        if n_users is None and draw(st.booleans()):
            return after_answers(read_recording(path), path, max_gap_s).take(rows_of_sessions(path, max_gap_s))
        bounds = sorted(draw(st.tuples(st.floats(0, 1), st.floats(0, 1))))
        spec = {"path": str(path), "format": "auto", "columns": {}, "max_gap_s": max_gap_s, "start_frac": bounds}
        client = None if n_users is None else {"concurrency": n_users}
        recorded = RecordedSessions.of(SimpleNamespace(trace=SimpleNamespace(**spec), client=client), path.parent)
    gaps = draw(st.lists(st.integers(0, 20), min_size=MOST_ROWS, max_size=MOST_ROWS))
    begins_s = np.zeros(MOST_ROWS) if n_users is not None else np.cumsum(gaps) * unit_s
    return recorded.draw(begins_s, None, streams(draw(st.integers(0, 9))))


def rows_of_sessions(path: Path, max_gap_s: float) -> Ints:
    """Return the rows of the first sessions, few enough for the oracle."""
    trace = after_answers(read_recording(path), path, max_gap_s)
    assert trace.dependencies is not None
    begins = trace.dependencies.first_rows()
    few = [rows for first in np.unique(begins) if len(rows := np.flatnonzero(begins == first)) <= MOST_ROWS]
    return np.sort(np.concatenate([few[0] if few else np.arange(0), *few[1:2]]))


@st.composite
def loads(draw: st.DrawFn, world: World, n_users: int | None) -> Trace:
    """Draw a recording with priorities and tenants; its prompts have ids where a replica caches, and only there."""
    load = draw(tagged(recordings(n_users).filter(len)))
    none = Prefixes.from_ids(16, np.empty(0, np.int64), np.zeros(len(load) + 1, np.int64))
    return replace(load, prefixes=(load.prefixes or none) if world.caches_prefixes else None)


@SLOWLY
@MEMBERS
@given(scene=scenes(), data=st.data())
def test_recorded_sessions(scene: Scene, data: st.DataObject, members: str) -> None:
    load = data.draw(loads(scene.world, scene.concurrency))
    limits: dict[str, Any] = {"patience": data.draw(st.none() | patiences()), "admission": data.draw(admissions())}
    script = None if members == "stay" else data.draw(changes(scene.world.setups, load))
    scene.check(load, stop_ps=data.draw(STOPS), changes=script, **limits)


@pytest.mark.parametrize("n_users", [None, 3])
@given(data=st.data())
def test_a_drawn_recording_is_a_load(n_users: int | None, data: st.DataObject) -> None:
    """Each request waits for earlier ones of its session, and each session has one that begins it."""
    load = data.draw(recordings(n_users))
    links = load.dependencies
    assert links is not None and load.session_id is not None
    assert (np.diff(load.arrival_s) >= 0).all()
    assert (links.parents < links.children).all()
    assert np.isfinite(links.think_s).all() and (links.think_s >= 0).all()
    begins = links.first_rows()
    assert (begins[links.parents] == begins[links.children]).all()
    assert len(np.unique(begins)) == len(np.unique(load.session_id))
    assert (load.session_id == load.session_id[begins]).all()
    if load.prefixes is not None:
        assert (load.prefixes.n_ids_of_rows() * load.prefixes.block_tokens <= load.prompt_tokens).all()


@given(data=st.data(), n_users=st.integers(0, 3), share=st.floats(0, 1), n=st.integers(1, 40))
def test_what_is_played_is_what_a_loop_plays(data: st.DataObject, n_users: int, share: float, n: int) -> None:
    sessions = [data.draw(agents(name, 1.0, 8)) for name in "abc"[: data.draw(st.integers(1, 3))]]
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder) / "t.jsonl", *sessions)
        trace = after_answers(read_recording(path), path, 10.0)
        spec = {"path": str(path), "format": "auto", "columns": {}, "max_gap_s": 10.0, "start_frac": (share, share)}
        client = {"concurrency": n_users} if n_users else None
        recorded = RecordedSessions.of(SimpleNamespace(trace=SimpleNamespace(**spec), client=client), path.parent)
    load = recorded.draw(np.zeros(n), None, streams(0))
    assert table(load) == by_loop(trace, n_users, share)[:n] == by_loop(trace, n_users, share)[: len(load)]
    ids = [set[int]() if load.prefixes is None else {*load.prefixes.of(row)} for row in range(n)]
    assert load.session_id is not None
    for name in np.unique(load.session_id):
        own, others = (set[int]().union(*(ids[row] for row in np.flatnonzero(mask))) for mask in masks(load, name))
        assert not own & others


def masks(load: Trace, name: str) -> tuple[Any, Any]:
    return load.session_id == name, load.session_id != name


Row = tuple[str, int, int, int, list[tuple[str, int]], float, int]


def table(load: Trace) -> list[Row]:
    """Return name, turn, lengths, the requests waited for, think time (of others than the first), and number of ids."""
    links, names, turns = load.dependencies, load.session_id, load.turn
    assert links is not None and names is not None and turns is not None
    result = []
    for row in range(len(load)):
        parents = links.parents[links.starts[row] : links.starts[row + 1]].tolist()
        awaited = [(str(names[parent]), int(turns[parent])) for parent in parents]
        n_ids = 0 if load.prefixes is None else len(load.prefixes.of(row))
        sizes = int(load.prompt_tokens[row]), int(load.output_tokens[row])
        wait_s = float(links.think_s[row]) if awaited else 0.0
        result.append((str(names[row]), int(turns[row]), *sizes, awaited, wait_s, n_ids))
    return result


def by_loop(trace: Trace, n_users: int, share: float) -> list[Row]:
    """Play the sessions of a recording forty times, each request after request."""
    rows, at_s = table(trace), trace.arrival_s.tolist()
    branch = [False] * len(rows) if trace.is_branch is None else trace.is_branch.tolist()
    names = list(dict.fromkeys(row[0] for row in rows))
    result: list[Row] = []
    for play in range(40):
        name = names[play % len(names)]
        own = [place for place, row in enumerate(rows) if row[0] == name]
        first = own[0]
        if play < n_users:
            until_s = at_s[own[0]] + share * (at_s[own[-1]] - at_s[own[0]])
            leading = {awaited for place in own for awaited in rows[place][4]}
            led = [
                place for place in own if not branch[place] and rows[place][:2] in leading and at_s[place] <= until_s
            ]
            first = led[-1] if led else first
        kept = {rows[first][:2]}
        called = name if play < len(names) else f"{name}/{play // len(names) + 1}"
        for place in own:
            _, turn, n_in, n_out, awaited, wait_s, n_ids = rows[place]
            there = [(called, other) for each, other in awaited if (each, other) in kept]
            if place == first or there:
                kept.add((name, turn))
                result.append((called, turn, n_in, n_out, there, wait_s if there else 0.0, n_ids))
    return result
