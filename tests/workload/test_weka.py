"""Weka/AgentX traces: what is read of a session, by which rules it is played, and messages about bad ones."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simserve import Scenario, simulate
from simserve.errors import ScenarioError, TraceError
from simserve.servers.load import load_of
from simserve.study.fleet import at_scale
from simserve.study.plan.options import demand_of
from simserve.workload.load import Load, offered_load
from simserve.workload.readers import detect, read_recording, read_trace
from simserve.workload.readers.logs import read_log, weka
from simserve.workload.replay import RecordedSessions, after_answers
from simserve.workload.streams import streams
from simserve.workload.trace import Trace
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario
from tests.workload.weka import Item, call, fan_out, in_background, session, subagent, written

NEVER = 1e9
"""A cap that is longer than any gap."""

AWAITED = [[], [0], [1], [1], [2], [1, 4, 3], [5], [6]]
"""Requests that each request of `fan_out` waits for: the third and fifth are one subagent's, the fourth another's."""


def awaited(trace: Trace) -> list[list[int]]:
    links = trace.dependencies
    assert links is not None
    return [links.parents[start:end].tolist() for start, end in zip(links.starts, links.starts[1:], strict=False)]


def think_s(path: Path, max_gap_s: float | None) -> list[float]:
    links = after_answers(read_recording(path), path, max_gap_s).dependencies
    assert links is not None
    return [round(each, 9) for each in links.think_s.tolist()]


@pytest.mark.parametrize("is_absolute", [True, False])
def test_a_session_is_read_with_what_its_requests_waited_for(is_absolute: bool, tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", fan_out(is_absolute=is_absolute))
    assert detect(path) == ("weka", None)
    trace = read_recording(path)
    assert trace.arrival_s.tolist() == [0, 9, 12, 13, 15, 19, 29, 40]
    assert trace.prompt_tokens.tolist() == [130, 200, 64, 70, 130, 260, 330, 340]
    assert trace.output_tokens.tolist() == [10, 20, 5, 7, 6, 30, 9, 8]
    assert trace.max_tokens is not None and trace.max_tokens.tolist() == trace.output_tokens.tolist()
    assert trace.e2e_s is not None and trace.e2e_s.tolist() == [1, 2, 1, 4, 1, 1, 1, 1]
    assert trace.turn is not None and trace.turn.tolist() == [*range(1, 9)]
    assert trace.is_branch is not None and np.flatnonzero(trace.is_branch).tolist() == [2, 3, 4]
    assert awaited(trace) == AWAITED
    relative = "sessions with times that count from the start of each subagent: 1"
    assert (relative in trace.notes) == (not is_absolute)
    assert "keys not read: stop, think_time" in trace.notes
    assert "all 1 sessions begin at 0 s" in trace.notes[0]
    plain = read_trace(path)
    assert plain.dependencies is None and plain.is_branch is None


def test_delays_are_from_the_last_answer_to_the_request_and_long_gaps_between_requests_are_cut(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", fan_out())
    assert think_s(path, None) == think_s(path, NEVER) == [0, 8, 1, 2, 2, 2, 9, 10]
    assert think_s(path, 11.0) == [0, 8, 1, 2, 2, 2, 9, 10]
    assert think_s(path, 10.0) == [0, 8, 1, 2, 2, 2, 9, 9]
    assert think_s(path, 9.0) == [0, 8, 1, 2, 2, 2, 8, 8]
    capped = after_answers(read_recording(path), path, 10.0)
    assert capped.arrival_s.tolist() == [0, 9, 12, 13, 15, 19, 29, 39]
    cut = "1 gaps between requests of a session were longer than max_gap_s, 10 s, and were cut to it"
    assert capped.notes[-1] == cut


def test_a_cap_is_of_each_session_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", fan_out("a"), session("c", call(4.0, 9, 1, []), call(30.0, 9, 1, [])))
    assert after_answers(read_recording(path), path, 10.0).arrival_s.tolist() == [0, 4, 9, 12, 13, 14, 15, 19, 29, 39]


def test_a_parent_waits_where_its_next_request_came_after_the_end_of_the_subagent(tmp_path: Path) -> None:
    """The example of AIPerf's loader: A joins the second request, B the third, and C none."""
    branches = [subagent(1.0, round(1e3 * (end_s - 1)), call(1.0, 9, 1, [])) for end_s in (6.0, 12.5, 24.0)]
    path = written(
        tmp_path / "t.jsonl",
        session("a", call(0.0, 9, 1, []), *branches, call(6.0, 9, 1, []), call(20.0, 9, 1, [])),
    )
    assert awaited(read_recording(path)) == [[], [0], [0], [0], [0, 1], [4, 2]]


def test_a_subagent_in_the_background_is_waited_for_by_none(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", in_background())
    assert awaited(read_recording(path)) == [[], [0], [0]]


def test_requests_of_one_agent_at_once_stay_parallel(tmp_path: Path) -> None:
    calls = [call(t, 9, 1, [], api_time) for t, api_time in ((0, 1), (2, 5), (3, 1), (8, 1))]
    path = written(tmp_path / "t.jsonl", session("a", *calls))
    assert awaited(read_recording(path)) == [
        [],
        [0],
        [0],
        [1],
    ]  # the last waits for the answer that came last before it


def test_requests_that_overlap_with_the_first_follow_it_at_once(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", session("a", call(0, 9, 1, [], 9.0), call(1, 9, 1, [])))
    assert awaited(read_recording(path)) == [[], [0]]
    assert think_s(path, None) == [0, 0]
    assert "1 of 1 turns came before the answer" in after_answers(read_recording(path), path).notes[-1]


def test_what_is_left_out_or_assumed_is_counted(tmp_path: Path) -> None:
    early = subagent(0.0, 10, call(0.0, 9, 1, []))
    calls = [call(1.0, 9, 1, [], None), call(2.0, 9, 0, []), call(3.0, 9, 2, [], model="n")]
    path = written(tmp_path / "t.jsonl", session("a", early, *calls))
    trace = read_recording(path)
    assert trace.output_tokens.tolist() == [1, 2]
    assert think_s(path, None) == [0, 2]
    assert set(trace.notes[1:]) == {
        "requests left out, of subagents before their parent's first request: 1",
        "requests without api_time, which count as answered at once: 1",
        "models, which are served as one: m, n",
        "keys not read: stop, think_time",
        "1 requests without an answer were left out",
    }


def test_ids_are_of_one_session_alone_and_of_whole_blocks_of_its_size(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "t.jsonl", fan_out("a"), fan_out("b")))
    assert trace.prefixes is not None and trace.session_id is not None
    assert trace.prefixes.block_tokens == 64
    assert trace.prefixes.n_ids_of_rows().tolist() == [2, 2, 3, 3, 1, 1, 1, 1, 2, 2, 4, 4, 5, 5, 5, 5]
    of = {
        name: {each for row in np.flatnonzero(trace.session_id == name) for each in trace.prefixes.of(int(row))}
        for name in "ab"
    }
    assert len(of["a"]) == len(of["b"]) == 7
    assert not of["a"] & of["b"]
    shared = [trace.prefixes.of(row) for row in (4, 6, 8)]  # subagents of one session share
    assert shared[0] == shared[1] == shared[2][:1]


def test_an_id_of_its_block_alone_is_chained(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "t.jsonl", session("a", call(0, 128, 1, [1, 2]), call(5, 128, 1, [3, 2]))))
    assert trace.prefixes is not None
    assert not set(trace.prefixes.of(0)) & set(trace.prefixes.of(1))
    assert "were chained" in trace.notes[-1]


@pytest.mark.parametrize("form", ["lines", "pretty", "array", "pretty array", "one", "gzip"])
def test_sessions_may_follow_each_other_or_be_in_an_array(form: str, tmp_path: Path) -> None:
    both = [fan_out("a"), in_background("b")]
    path = tmp_path / "t.json"
    texts = {
        "lines": "".join(f"{json.dumps(each)}\n" for each in both),
        "pretty": "\n".join(json.dumps(each, indent=2) for each in both),
        "array": json.dumps(both),
        "pretty array": json.dumps(both, indent=2),
        "one": json.dumps(both[0]),
    }
    path.write_bytes(gzip.compress(texts["lines"].encode()) if form == "gzip" else texts[form].encode())
    trace = read_trace(path)
    assert len(trace) == (8 if form == "one" else 11)


def played(path: Path, n_users: int, start_frac: tuple[float, float]) -> RecordedSessions:
    spec = SimpleNamespace(path=str(path), format="auto", columns={}, max_gap_s=10.0, start_frac=start_frac)
    client = {"concurrency": n_users} if n_users else None
    return RecordedSessions.of(SimpleNamespace(trace=spec, client=client), path.parent)


@pytest.mark.parametrize(
    ("share", "turns"),
    [
        (0.0, [1, 2, 3, 4, 5, 6, 7, 8]),
        (0.22, [1, 2, 3, 4, 5, 6, 7, 8]),  # 8.58 s
        (0.24, [2, 3, 4, 5, 6, 7, 8]),
        (0.35, [2, 3, 4, 5, 6, 7, 8]),  # 13.65 s, while both subagents are at work
        (0.6, [6, 7, 8]),  # 23.4 of 39 s
        (1.0, [7, 8]),  # at least one request follows
    ],
)
def test_a_session_is_taken_up_at_the_main_agents_last_request_before_its_start_position(
    share: float, turns: list[int], tmp_path: Path
) -> None:
    recorded = played(written(tmp_path / "t.jsonl", fan_out()), 1, (share, share))
    first = recorded.draw(np.zeros(50), None, streams(0))
    assert first.turn is not None and first.prefixes is not None
    assert first.turn.tolist()[: len(turns) + 8] == [*turns, *range(1, 9)]  # the next session begins at its beginning
    own = [[parent - (8 - len(turns)) for parent in parents] for parents in AWAITED[8 - len(turns) :]]
    assert awaited(first)[: len(turns)] == [[each for each in parents if each >= 0] for parents in own]
    assert awaited(first)[len(turns)] == []


def test_start_positions_are_drawn_for_each_user_within_their_bounds(tmp_path: Path) -> None:
    chain = session("a", *(call(float(t), 9, 1, [], 0.5) for t in range(101)))
    path = written(tmp_path / "t.jsonl", chain)

    def turns(seed: int, *bounds: float) -> list[int]:
        trace = played(path, 200, (bounds[0], bounds[1])).draw(np.zeros(40_000), None, streams(seed))
        links = trace.dependencies
        assert links is not None and trace.turn is not None
        first: list[int] = trace.turn[links.n_parents == 0][:200].tolist()
        return first

    drawn = turns(0, 0.0, 1.0)
    assert drawn == turns(0, 0.0, 1.0) != turns(1, 0.0, 1.0)
    assert np.histogram(drawn, bins=4, range=(1, 101))[0].tolist() == pytest.approx([50] * 4, abs=22)
    assert {*turns(0, 0.25, 0.75)} <= {*range(25, 78)}


def test_a_session_that_is_played_again_is_another_one_and_shares_nothing_with_before(tmp_path: Path) -> None:
    recorded = played(written(tmp_path / "t.jsonl", fan_out("a"), in_background("b")), 0, (0.0, 0.0))
    trace = recorded.draw(np.arange(5.0), 100.0, streams(0))
    assert trace.session_id is not None and trace.prefixes is not None
    assert [*dict.fromkeys(trace.session_id.tolist())] == ["a", "b", "a/2", "b/2", "a/3"]
    assert [*dict.fromkeys(trace.arrival_s.tolist())] == [0, 1, 2, 3, 4]
    assert awaited(trace)[11:19] == [[parent + 11 for parent in parents] for parents in AWAITED]
    blocks = [{*trace.prefixes.of(row)} for row in range(len(trace))]
    assert not set[int]().union(*blocks[:11]) & set[int]().union(*blocks[11:22])
    assert [len(each) for each in blocks[:11]] == [len(each) for each in blocks[11:22]]


def test_fewer_requests_are_the_first_of_more(tmp_path: Path) -> None:
    recorded = played(written(tmp_path / "t.jsonl", fan_out("a"), in_background("b")), 3, (0.0, 1.0))
    many, few = (recorded.draw(np.zeros(n), None, streams(4)) for n in (70, 33))
    assert len(few) == 33 and few.session_id is not None and many.session_id is not None and many.prefixes is not None
    assert few.session_id.tolist() == many.session_id[:33].tolist()
    assert awaited(few) == awaited(many)[:33]
    assert few.prefixes is not None
    assert [few.prefixes.of(row) for row in range(33)] == [many.prefixes.of(row) for row in range(33)]


Run = Callable[..., Scenario]


@pytest.fixture
def scenario(tmp_path: Path) -> Run:
    """A scenario that plays two sessions, with further keys of its workload and its pool."""
    path = written(tmp_path / "t.jsonl", fan_out("a", is_absolute=False), in_background("b"))

    def build(workload: dict[str, Any], *pools: dict[str, Any], **cluster: Any) -> Scenario:
        trace = {"path": str(path), "next_turn": "after_answer"} | workload.get("trace", {})
        data: dict[str, Any] = {"schema": "simserve/1", "model": "llama-3.1-8b", "gpu": "h100-sxm"}
        data |= {"workload": workload | {"trace": trace}, "measure": {"replays": 0}}
        return Scenario.from_dict(data | {"cluster": {"pools": [*pools] or [{}], **cluster}})

    return build


USERS = {"client": {"kind": "closed_loop", "concurrency": 3}, "duration_s": 300}


def test_the_rules_of_agentx_are_the_defaults_where_others_begin_the_sessions(scenario: Run) -> None:
    users = scenario({"client": {"concurrency": 2}}).workload
    assert users.trace is not None
    assert (users.trace.max_gap_s, users.trace.start_frac, users.duration_s) == (10.0, (0.0, 1.0), 1800.0)
    arrivals = scenario({"arrivals": {"kind": "poisson", "rate_per_s": 1}}).workload
    assert arrivals.trace is not None
    assert (arrivals.trace.max_gap_s, arrivals.trace.start_frac, arrivals.duration_s) == (10.0, None, 1800.0)
    alone = scenario({}).workload
    assert alone.trace is not None
    assert (alone.trace.max_gap_s, alone.trace.start_frac, alone.duration_s) == (None, None, None)
    own = scenario(
        {"client": {"concurrency": 2}, "n_requests": 9, "trace": {"max_gap_s": 60, "start_frac": [0.25, 0.75]}}
    )
    assert own.workload.trace is not None
    assert (own.workload.trace.max_gap_s, own.workload.trace.start_frac) == (60.0, (0.25, 0.75))
    assert own.workload.duration_s is None
    again = Scenario.from_dict(own.to_dict())
    assert again.digest == own.digest


def test_users_keep_as_many_sessions_alive_as_there_are_users(scenario: Run) -> None:
    results = simulate(scenario(USERS))
    requests = results.columns["requests"]
    names = requests["session_id"]
    ends = {name: float(requests["finish_s"][names == name].max()) for name in np.unique(names)}
    starts = {name: float(requests["arrival_s"][names == name].min()) for name in np.unique(names)}
    for at_s in (0.5, 20.0, 100.0, 250.0):
        assert sum(starts[name] <= at_s <= ends[name] for name in starts) == 3
    assert requests["arrival_s"].max() < 300
    assert results.summary["sessions"]["finished"] > 3


def load_of_scenario(scenario: Scenario, seed: int = 0) -> Load:
    return offered_load(scenario.workload, seed, scenario.base_dir)


def test_arrivals_begin_the_sessions_in_turn(scenario: Run) -> None:
    arrivals = {"arrivals": {"kind": "poisson", "rate_per_s": 0.2}, "duration_s": 200}
    load = load_of_scenario(scenario(arrivals))
    assert load.drawn is not None and load.drawn.kind == "sessions" and load.trace.session_id is not None
    first = np.unique(load.trace.session_id, return_index=True)[1]
    assert sorted(load.trace.arrival_s[first].tolist()) == load.drawn.at_s.tolist()
    assert load.trace.turn is not None and (load.trace.turn[first] == 1).all()
    assert load.stop_sending_s == 200
    assert load_of_scenario(scenario(arrivals), 1).trace.arrival_s.tolist() != load.trace.arrival_s.tolist()
    results = simulate(scenario(arrivals))
    sent = results.columns["requests"]["arrival_s"][results.columns["requests"]["turn"] == 1]
    assert sent.tolist() == pytest.approx([each for each in load.drawn.at_s.tolist() if each < 200], abs=1e-9)


def test_without_either_all_sessions_begin_at_the_times_of_the_file(scenario: Run) -> None:
    requests = simulate(scenario({})).columns["requests"]
    assert sorted(requests["arrival_s"][requests["turn"] == 1].tolist()) == [0, 0]
    answered = simulate(scenario({"trace": {"next_turn": "after_arrival"}})).columns["requests"]
    assert answered["arrival_s"].tolist() == [0, 0, 1.5, 3, 9, 12, 13, 15, 19, 29, 40]


PREFILL = {"name": "p", "role": "prefill"}
DECODE = {"name": "d", "role": "decode"}
MECHANISMS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "no cache": ({}, [{"enable_prefix_caching": False}]),
    "two pools": ({}, [PREFILL, DECODE]),
    "retries": ({"timeout": {"e2e_s": 0.2, "then": "next_turn"}, "retries": {"max_attempts": 2}}, [{}]),
    "classes": ({"classes": {"x": {"share": 0.5}, "y": {"share": 0.5}}, "tenants": {"t": 1.0}}, [{}]),
    "batch": (
        {"batch": {"n_requests": 5, "lengths": {"kind": "fixed", "prompt_tokens": 9, "output_tokens": 3}}},
        [{}],
    ),
    "ngram": ({}, [{"speculation": {"kind": "ngram", "tokens": 3, "acceptance": 0.5}}]),
    "host memory": ({}, [{"host_tier": {"bytes": 1e10}}]),
}


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("begun", [USERS, {"arrivals": {"kind": "poisson", "rate_per_s": 0.1}, "duration_s": 300}])
def test_recorded_agents_run_with_every_other_mechanism(name: str, begun: dict[str, Any], scenario: Run) -> None:
    workload, pools = MECHANISMS[name]
    results = simulate(scenario({**begun, **workload}, *pools))
    requests = results.columns["requests"]
    assert requests["status"].is_("finished").sum() > 30
    cached = results.columns["requests"]["cached_tokens"].sum()
    assert (cached == 0) == (name == "no cache")


def test_a_search_scales_the_arrivals_of_sessions_and_not_the_times_of_the_file(scenario: Run) -> None:
    begun = scenario({"arrivals": {"kind": "poisson", "rate_per_s": 0.1}, "duration_s": 300})
    twice = at_scale(begun, 2.0).workload
    assert twice.trace is not None and twice.arrivals is not None
    assert (twice.arrivals["rate_per_s"], twice.trace.rate_scale) == (0.2, 1.0)
    assert demand_of(begun).kind == "arrivals"
    with pytest.raises(ScenarioError, match="needs a rate to search over"):
        at_scale(scenario(USERS), 2.0)
    alone = at_scale(scenario({}), 2.0).workload
    assert alone.trace is not None and alone.trace.rate_scale == 2.0


@pytest.mark.parametrize("begun", [USERS, {"arrivals": {"kind": "poisson", "rate_per_s": 0.1}, "duration_s": 300}, {}])
def test_a_run_with_its_replays_answers(begun: dict[str, Any], scenario: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(scenario(begun).to_yaml().replace("replays: 0", "replays: 2"))
    outcome = invoke("run", tmp_path / "a.yaml", "--out", tmp_path / "out")
    assert outcome.exit_code == 0, outcome.err
    again = invoke("run", tmp_path / "out" / "scenario.yaml", "--out", tmp_path / "again")
    assert again.exit_code == 0, again.err
    digests = [json.loads((tmp_path / out / "summary.json").read_text())["digest"] for out in ("out", "again")]
    assert digests[0] == digests[1]


def test_recordings_of_other_formats_are_played_by_users_too(tmp_path: Path) -> None:
    rows = ["Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"]
    rows += [f"{30 * turn + k},s{k},2,M,{50 + turn},5,9,API" for turn in range(3) for k in range(2)]
    (tmp_path / "b.csv").write_text("\n".join(rows) + "\n")
    recorded = played(tmp_path / "b.csv", 0, (0.0, 0.0)).draw(np.zeros(12), None, streams(0))
    assert recorded.prompt_tokens.tolist() == [50, 51, 52] * 4
    assert recorded.session_id is not None and recorded.dependencies is not None
    assert recorded.session_id.tolist() == ["s0"] * 3 + ["s1"] * 3 + ["s0/2"] * 3 + ["s1/2"] * 3
    assert recorded.dependencies.think_s.tolist() == [0, 8, 8] * 4  # gaps of 30 s are cut to 10 s, answers took 2 s


def test_a_log_has_api_time_as_its_measured_latency(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", fan_out("a"), session("c", call(1.0, 9, 2, [], None)))
    log = read_log(path)
    assert [*log.measured] == ["e2e_s"]
    assert np.nan_to_num(log.measured["e2e_s"], nan=-1).tolist() == [1, -1, 2, 1, 4, 1, 1, 1, 1]
    assert log.place.numbers.tolist() == [1, 2, *[1] * 7]
    assert (log.model, log.trace.dependencies) == ("m", None)
    assert read_log(written(tmp_path / "u.jsonl", session("c", call(1.0, 9, 2, [], None)))).measured == {}
    load = load_of([path], {})
    assert (load.facts.kind, load.facts.n_requests, load.models[path]) == ("trace", 9, "m")


def test_the_commands_for_traces_and_logs_take_it(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", fan_out("a"), in_background("b"))
    info = invoke("trace", "info", path, "--json")
    assert info.exit_code == 0, info.err
    assert json.loads(info.out)["n_requests"] == 11
    assert invoke("trace", "convert", path, tmp_path / "t.csv").exit_code == 0
    assert len(read_trace(tmp_path / "t.csv")) == 11
    validated = invoke("validate", path, "--scenario", write_scenario(tmp_path), "--json")
    assert validated.exit_code in (0, 1), validated.err
    assert json.loads(validated.out)["log"]["n_compared"] == 11


def broken(at: tuple[Any, ...], value: Any) -> list[Item]:
    """Return two sessions, with a value of the second replaced."""
    both: list[Any] = [fan_out("a"), fan_out("b")]
    inner = both[1]
    for key in at[:-1]:
        inner = inner[key]
    if value is None:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return both


BAD: list[tuple[tuple[Any, ...], Any, str]] = [
    (("requests", 1, "in"), 0, "t.jsonl:2: request 2: in: must be at least 1, got 0; correct or remove it"),
    (("requests", 1, "in"), "9", "request 2: in: must be a whole number, got '9'; correct or remove it"),
    (("requests", 1, "in"), None, "t.jsonl:2: request 2: in: is missing; correct or remove it"),
    (("requests", 1, "out"), -1, "request 2: out: must be at least 0, got -1; correct or remove it"),
    (("requests", 1, "t"), -1.0, "request 2: t: must be at least 0, got -1"),
    (("requests", 1, "t"), float("nan"), "request 2: t: must be a finite number, got NaN"),
    (("requests", 1, "t"), 1e12, "request 2: t: must be at most 100000000000, got 1000000000000"),
    (("requests", 1, "api_time"), "x", "request 2: api_time: must be a number, got 'x'"),
    (("requests", 1, "hash_ids"), [1, -2], "request 2: hash_ids.1: must be at least 0, got -2"),
    (("requests", 1, "type"), "m", "request 2: type: must be one of n or s, got 'm'; correct or remove it"),
    (("requests", 2, "requests", 1, "in"), 0, "t.jsonl:2: request 3: requests.1.in: must be at least 1, got 0"),
    (("requests", 2, "requests", 1, "type"), "subagent", "request 3: requests.1.type: must be one of n or s"),
    (("requests", 2, "duration_ms"), -1, "request 3: duration_ms: must be at least 0, got -1"),
    (("requests",), {"a": 1}, "t.jsonl:2: requests must be a list, got {'a': 1}; correct or remove it"),
    (("requests", 0), 7, "t.jsonl:2: request 1: must be a mapping, got 7"),
    (("requests",), None, "t.jsonl:2: requests: is missing"),
    (("hash_id_scope",), "global", "t.jsonl:2: hash_id_scope: must be 'local', got 'global'; correct or remove it"),
    (("block_size",), 0, "t.jsonl:2: block_size: must be at least 1, got 0"),
    (("block_size",), 16, "t.jsonl: line 2: block_size must be the same in all sessions, got 16"),
    (("id",), "a", "t.jsonl: line 1, 2: id must be unique, got 'a'; correct or remove these lines"),
    (("id",), "x" * 200, "t.jsonl: line 2: id must be text of at most 128 characters, got 'xx"),
]  # fmt: skip


@pytest.mark.parametrize(("at", "value", "sentence"), BAD)
def test_a_bad_trace_is_refused_with_place_rule_value_and_remedy(
    at: tuple[Any, ...], value: Any, sentence: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "t.jsonl", *broken(at, value))
    for read in (lambda: read_trace(path), lambda: read_log(path)):
        with pytest.raises(TraceError) as error:
            read()
        assert sentence in str(error.value)
        assert str(error.value).startswith(str(path))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (json.dumps(fan_out())[:-9], "t.jsonl:1: must be JSON objects, one after another or in an array"),
        (f"{json.dumps(fan_out())}\n7\n", "t.jsonl:2: must be JSON objects, one after another or in an array"),
        (f"[{json.dumps(fan_out())}", "t.jsonl:1: must be JSON objects"),
        (f"{json.dumps(fan_out())}]", "t.jsonl:1: must be JSON objects"),
        ('{"hash_id_scope": "local", []: 7}', "t.jsonl:1: must be JSON objects"),
        (json.dumps(session("a")), "must hold at least one request, got none"),
        (json.dumps([]) + ' "hash_id_scope"', "t.jsonl:1: must be JSON objects"),
    ],
)
def test_a_file_that_was_cut_or_holds_something_else_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert sentence in str(error.value)


def test_a_session_of_too_many_requests_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "t.jsonl", fan_out("a"), fan_out("b"))
    monkeypatch.setattr(weka, "MOST_CALLS", 6)
    with pytest.raises(TraceError, match=r"t.jsonl:1: a session must have at most 6 requests, got more; cut it"):
        read_trace(path)


def test_requests_that_do_not_fit_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "t.jsonl", fan_out("a"), fan_out("b"))
    monkeypatch.setattr(weka, "most_rows", lambda: 90)
    with pytest.raises(TraceError, match=r"t.jsonl: must have at most 10 requests; cut it"):
        read_trace(path)
