"""A trace follows the rules of its format, and its slices are what the tables say, by hand and for real runs."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve import load_results, load_scenario, simulate
from simserve.engine.frontend import FrontEnd
from simserve.engine.tabulate import tabulate
from simserve.errors import OutputError
from simserve.metrics.results import Results
from simserve.report.slowest import PARTS
from simserve.report.trace import trace as trace_module
from simserve.report.trace.events import Events, TraceTrack
from simserve.report.trace.trace import Chosen, trace
from simserve.schedulers.chunked import Chunked
from simserve.units import to_s
from tests.doubles import MS, LineCost, replica_setup, serve
from tests.doubles import trace as load_of
from tests.metrics.stories import pool_facts, run_facts

DECODING = ("Decode", "Interference", "Evicted", PARTS["preempted_s"].title, PARTS["recompute_s"].title)
SPLIT_OF_DECODING = ("decode_s", "interference_s", "copy_s", "preempted_s", "recompute_s")


def read(text: str) -> dict[str, Any]:
    """Strict JSON: no NaN, no infinities."""

    def refuse(constant: str) -> Any:
        raise AssertionError(f"not JSON: {constant}")

    progress: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return progress


def assert_follows_the_format(text: str) -> list[dict[str, Any]]:
    """Every event has what its phase must have; they are sorted; slices of a thread nest; arrows join two."""
    progress = read(text)
    events: list[dict[str, Any]] = progress["traceEvents"]
    assert progress["displayTimeUnit"] in ("ms", "ns")
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    for event in events:
        assert {"ph", "ts", "pid", "tid", "name"} <= set(event)
        assert all(type(event[key]) is int and event[key] >= 0 for key in ("ts", "pid", "tid"))
        assert event["ph"] in "XCMsf"
        if event["ph"] == "X":
            assert type(event["dur"]) is int
            assert event["dur"] > 0
        if event["ph"] == "C":
            assert event["args"]
            assert all(isinstance(value, int | float) for value in event["args"].values())
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "process_sort_index", "thread_sort_index")
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in threads.values():
        assert_nested(slices)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert set(threads) <= named
    assert_arrows(events, threads)
    return events


def assert_nested(slices: list[tuple[int, int]]) -> None:
    """In the order of the file, each begins inside the last open one and ends no later."""
    open_ends: list[int] = []
    for start_us, end_us in slices:
        while open_ends and open_ends[-1] <= start_us:
            open_ends.pop()
        assert not open_ends or end_us <= open_ends[-1]
        open_ends.append(end_us)


def assert_arrows(events: list[dict[str, Any]], threads: dict[tuple[int, int], list[tuple[int, int]]]) -> None:
    ends: dict[int, list[str]] = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            ends[event["id"]].append(event["ph"])
            assert any(start <= event["ts"] < end for start, end in threads[event["pid"], event["tid"]])
            assert event["ph"] == "s" or event["bp"] == "e"
    assert all(phases == ["s", "f"] for phases in ends.values())


def ran(name: str, *overrides: str) -> Results:
    return simulate(load_scenario(f"scenarios/{name}.yaml", overrides=[*overrides, "measure.replays=0"]))


@pytest.fixture(scope="module", params=["busy", "apart", "pushed", "swapping", "evicting", "whole answers"])
def results(request: pytest.FixtureRequest) -> Results:
    short, few = "workload.duration_s=60", "workload.n_requests=500"
    if request.param == "busy":
        return ran("chat_burst", short, "workload.arrivals.rates_per_s=[16,60]", "measure.warmup_s=5")
    if request.param == "apart":
        return ran("disaggregated", few, "measure.warmup_s=5")
    if request.param == "pushed":
        return ran("disaggregated", few, "measure.warmup_s=5", "cluster.kv_link.how=push")
    if request.param == "swapping":
        return ran("host_tier", "measure.warmup_s=5", few)
    if request.param == "evicting":
        tight = ("cluster.pools.0.num_gpu_blocks=2500", "measure.warmup_s=5", "workload.arrivals.rates_per_s=[10,20]")
        return ran("chat_burst", short, *tight)
    return ran("static", few, "measure.warmup_s=5")


def test_of_real_runs_follows_the_format(results: Results) -> None:
    drawn = trace(results, Chosen(slowest=10))
    events = assert_follows_the_format(drawn.text)
    assert drawn.cut is None
    phases = {event["ph"] for event in events}
    assert phases == {"M", "X", "C", "s", "f"}


def test_the_slices_of_a_request_add_up_to_its_parts(results: Results) -> None:
    requests = results.columns["requests"]
    by_id = {str(each): row for row, each in enumerate(requests["request_id"])}
    events = read(trace(results, Chosen(slowest=10)).text)["traceEvents"]
    tracks = {
        e["tid"]: by_id[e["args"]["name"].split()[1]] for e in events if e["pid"] == 1 and e["name"] == "thread_name"
    }
    spent: dict[int, dict[str, int]] = {row: defaultdict(int) for row in tracks.values()}
    for event in events:
        if event["pid"] == 1 and event["ph"] == "X":
            spent[tracks[event["tid"]]][event["name"]] += event["dur"]
    for row, by_name in spent.items():
        columns = {name: float(requests[name][row]) for name in PARTS}
        whole_us = by_name.pop(f"Request {requests['request_id'][row]}")
        assert whole_us == pytest.approx(requests["e2e_s"][row] * 1e6, abs=1)
        assert sum(by_name.values()) == pytest.approx(whole_us, abs=1)  # they leave no gap
        expected = {part.title: columns[name] for name, part in PARTS.items() if name not in SPLIT_OF_DECODING}
        expected["Prefill"] += expected.pop(PARTS["prefill_wait_s"].title)
        for title, seconds in expected.items():
            assert by_name.pop(title, 0) == pytest.approx(seconds * 1e6, abs=40)  # a microsecond a slice
        assert set(by_name) <= set(DECODING)
        assert sum(by_name.values()) == pytest.approx(1e6 * sum(columns[name] for name in SPLIT_OF_DECODING), abs=40)


def test_a_written_run_gives_the_same_trace(results: Results, tmp_path: Path) -> None:
    results.write(tmp_path / "out")
    assert trace(load_results(tmp_path / "out"), Chosen(slowest=3)) == trace(results, Chosen(slowest=3))


def by_hand(outputs: list[int], n_blocks: int = 100, **more: Any) -> Results:
    """Requests of 4 tokens that come at once, to a server of one seat whose steps take 10 ms."""
    setup = replica_setup(Chunked(max_num_seqs=more.pop("seats", 1)), LineCost(step=10 * MS), n_blocks, 4)
    front_end = FrontEnd(receive_ps=MS, respond_ps=2 * MS)
    cluster = serve(setup, load_of([0.0] * len(outputs), [4] * len(outputs), outputs), front_end=front_end)
    run = tabulate(cluster, np.zeros(1, np.int32), ("serve",))
    return Results.from_run(run, run_facts(run, pools=(pool_facts(),), respond_s=to_s(2 * MS)), "")


def test_two_requests_and_one_slot_by_hand() -> None:
    events = assert_follows_the_format(trace(by_hand([3, 1]), Chosen(ids=("1", "0"))).text)
    drawn = [(e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    # through the door at 1 and 2 ms; the first computes its prompt until 11 ms, and decodes until 31 ms
    assert sorted(drawn) == [
        (1, 1, "Front end", 0, 2_000),
        (1, 1, "Front end", 41_000, 2_000),
        (1, 1, "Prefill", 31_000, 10_000),
        (1, 1, "Queue: next step", 2_000, 9_000),
        (1, 1, "Queue: slots", 11_000, 20_000),
        (1, 1, "Request 1", 0, 43_000),
        (1, 2, "Decode", 11_000, 20_000),
        (1, 2, "Front end", 0, 1_000),
        (1, 2, "Front end", 31_000, 2_000),
        (1, 2, "Prefill", 1_000, 10_000),
        (1, 2, "Request 0", 0, 33_000),
        (2, 1, "Decode, 2 steps", 11_000, 20_000),
        (2, 1, "Prefill", 1_000, 10_000),
        (2, 1, "Prefill", 31_000, 10_000),
    ]
    arrows = [(e["ph"], e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] in "sf"]
    assert arrows == [("s", 1, 2, 1_000), ("f", 2, 1, 1_000), ("s", 1, 1, 31_000), ("f", 2, 1, 31_000)]
    waiting = [(e["ts"], e["args"]["requests"]) for e in events if e["name"] == "Waiting"]
    assert waiting == [(1_000, 0), (11_000, 1), (31_000, 0)]
    (decode,) = (e for e in events if e["name"] == "Decode, 2 steps")
    assert (decode["args"]["blocked_by"], decode["args"]["decode_requests"], decode["args"]["n_steps"]) == (
        "seats",
        1,
        2,
    )


def test_an_eviction_by_hand() -> None:
    # In blocks of 4 tokens, of which there are 4. The first request has stored 8 tokens at 51 ms and needs a third one,
    # so the second gives up its two; it wants two again for its 8 tokens, and has them when the first is done at 81 ms.
    results = by_hand([8, 8], n_blocks=4, seats=2)
    events = assert_follows_the_format(trace(results, Chosen(ids=("1",))).text)
    drawn = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == 1]
    requests = results.columns["requests"]
    left_us, back_us = 51_000, 81_000
    assert requests["n_preemptions"].tolist() == [0, 1]
    assert (PARTS["preempted_s"].title, left_us, back_us - left_us) in drawn
    assert (PARTS["recompute_s"].title, back_us, 10_000) in drawn


def test_too_much_is_cut_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "MOST_ROWS", 3)
    drawn = trace(by_hand([3, 1, 1]), Chosen())  # the last two are in four steps' time, the first in three
    assert drawn.cut == "the trace lacks steps around 2 requests, to keep 3 rows; choose fewer by --timeline-requests"
    events = assert_follows_the_format(drawn.text)
    assert read(drawn.text)["otherData"]["cut"] == drawn.cut
    assert sum(e["ph"] == "X" and e["pid"] == 2 for e in events) == 3
    assert sum(e["name"] == "thread_name" and e["pid"] == 1 for e in events) == 3  # the requests themselves are there


def test_the_slowest_by_ttft_come_first_then_those_by_e2e() -> None:
    events = read(trace(by_hand([30, 1, 1]), Chosen(slowest=1)).text)["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 1]
    assert names == ["Request 2"]  # the last in the queue is last by both


def test_requests_that_are_not_there_and_steps_that_were_not_written_are_refused(tmp_path: Path) -> None:
    results = by_hand([1, 1])
    with pytest.raises(OutputError, match=r"--timeline-requests: must name requests .* from 0 to 1\), got 7"):
        trace(results, Chosen(ids=("0", "7")))
    results.write(tmp_path / "out", steps="none")
    with pytest.raises(OutputError, match="run again without --steps none"):
        trace(load_results(tmp_path / "out"), Chosen())


def test_less_than_half_a_microsecond_is_not_drawn_and_names_are_kept_as_they_are() -> None:
    events, track = Events(), TraceTrack(1, 1)
    events.name_thread(track, 'quote " and </script>')
    events.slice(track, "short", (1.0, 1.0 + 4e-7), {})
    events.slice(track, "long", (1.0, 1.5), {"none": None})
    progress = read(events.as_json({}))["traceEvents"]
    assert [e["name"] for e in progress if e["ph"] == "X"] == ["long"]
    assert progress[0]["args"]["name"] == 'quote " and </script>'
