"""Classes and tenants of requests: drawn by shares, without a change to anything else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.errors import TraceError
from simserve.scenario import Scenario
from simserve.workload.load import Load, offered_load
from simserve.workload.trace import Trace

BASE: dict[str, Any] = {
    "arrivals": {"kind": "poisson", "rate_per_s": 5},
    "lengths": {"kind": "uniform", "prompt_tokens": [10, 90], "output_tokens": [10, 90]},
    "n_requests": 4000,
}
FIXED = {"kind": "fixed", "prompt_tokens": 7, "output_tokens": 3}


def load_of(**workload: Any) -> Load:
    given = {key: value for key, value in (BASE | workload).items() if value is not None}
    data = {"schema": "simserve/1", "model": "llama-3.1-8b", "gpu": "h100-sxm", "workload": given}
    scenario = Scenario.from_dict(data)
    return offered_load(scenario.workload, scenario.seed, scenario.base_dir)


def drawn(**workload: Any) -> Trace:
    return load_of(**workload).trace


def test_classes_have_their_shares_and_change_neither_arrivals_nor_lengths() -> None:
    plain, trace = drawn(), drawn(classes={"chat": {"share": 0.8}, "bulk": {"share": 0.2, "priority": 10}})
    assert trace.slo_class is not None
    assert trace.priority is not None
    is_bulk = trace.slo_class == "bulk"
    assert is_bulk.mean() == pytest.approx(0.2, abs=0.03)
    assert (trace.priority == np.where(is_bulk, 10, 0)).all()
    for name in ("arrival_s", "prompt_tokens", "output_tokens"):
        assert (getattr(trace, name) == getattr(plain, name)).all()


def test_a_class_with_lengths_of_its_own_has_those_and_the_others_keep_theirs() -> None:
    trace = drawn(classes={"chat": {"share": 0.5}, "bulk": {"share": 0.5, "lengths": FIXED}})
    is_bulk = trace.slo_class == "bulk"
    assert (trace.prompt_tokens[is_bulk] == 7).all()
    assert (trace.prompt_tokens[~is_bulk] == drawn().prompt_tokens[~is_bulk]).all()


def test_the_first_marks_are_the_first_of_more_and_tenants_are_independent_of_classes() -> None:
    labels = {"classes": {"a": {"share": 0.5}, "b": {"share": 0.5}}, "tenants": {"x": 0.3, "y": 0.7}}
    few, many = drawn(**labels, n_requests=100), drawn(**labels)
    assert few.slo_class is not None
    assert many.slo_class is not None
    assert many.tenant is not None
    assert (many.slo_class[:100] == few.slo_class).all()
    assert (many.tenant == "x").mean() == pytest.approx(0.3, abs=0.03)
    assert (many.tenant == "x")[many.slo_class == "a"].mean() == pytest.approx(0.3, abs=0.04)


def test_a_conversation_is_of_one_class_and_one_tenant() -> None:
    turns = {"kind": "conversations", "turns": 4, "think_s": 5.0}
    trace = drawn(prefixes=turns, classes={"a": {"share": 0.5}, "b": {"share": 0.5}}, tenants={"x": 0.5, "y": 0.5})
    assert trace.session_id is not None
    for column in (trace.slo_class, trace.tenant):
        assert column is not None
        pairs = {*zip(trace.session_id.tolist(), column.tolist(), strict=True)}
        assert len(pairs) == len(np.unique(trace.session_id))


def test_a_closed_loop_has_classes_too() -> None:
    loop = {"client": {"concurrency": 3}, "arrivals": None}
    trace = drawn(classes={"a": {"share": 0.5}, "b": {"share": 0.5}}, **loop)
    assert trace.slo_class is not None
    assert set(trace.slo_class.tolist()) == {"a", "b"}


def test_jobs_come_beside_the_others_in_one_sorted_trace() -> None:
    batch = {"n_requests": 10, "at_s": [2.0, 100.0], "over_s": 5.0, "lengths": FIXED, "tenant": "ops", "priority": 3}
    trace, plain = drawn(batch=batch), drawn()
    assert len(trace) == len(plain) + 20
    assert (np.diff(trace.arrival_s) >= 0).all()
    assert trace.slo_class is not None
    assert trace.priority is not None
    assert trace.tenant is not None
    is_batch = trace.slo_class == "batch"
    assert trace.arrival_s[is_batch].tolist() == [*np.arange(2, 7, 0.5), *np.arange(100, 105, 0.5)]
    assert (trace.prompt_tokens[~is_batch] == plain.prompt_tokens).all()
    assert set(trace.tenant[is_batch].tolist()) == {"ops"}
    assert set(trace.priority[is_batch].tolist()) == {3}
    assert set(trace.priority[~is_batch].tolist()) == {0}
    assert set(trace.slo_class[~is_batch].tolist()) == {""}


def test_jobs_share_no_prefixes_and_leave_those_of_others_where_they_were() -> None:
    shared = {"kind": "shared", "prefix_tokens": 64, "n_prefixes": 3}
    trace, plain = drawn(prefixes=shared, batch={"n_requests": 50, "lengths": FIXED}), drawn(prefixes=shared)
    assert trace.prefixes is not None
    assert plain.prefixes is not None
    is_batch = np.equal(trace.slo_class, "batch") if trace.slo_class is not None else np.zeros(0, np.bool_)
    ids = [trace.prefixes.of(row) for row in range(len(trace))]
    assert [result for result, mine in zip(ids, is_batch.tolist(), strict=True) if mine] == [[]] * 50
    others = [result for result, mine in zip(ids, is_batch.tolist(), strict=True) if not mine]
    assert others == [plain.prefixes.of(row) for row in range(len(plain))]


def test_jobs_beside_turns_that_follow_answers_leave_these_as_they_were() -> None:
    turns = {"kind": "conversations", "turns": 4, "think_s": 5.0, "next_turn": "after_answer"}
    job = {"n_requests": 50, "over_s": 20.0, "lengths": FIXED}
    trace, plain = drawn(prefixes=turns, batch=job, n_requests=400), drawn(prefixes=turns, n_requests=400)
    assert trace.dependencies is not None and plain.dependencies is not None and trace.slo_class is not None
    mine = np.flatnonzero(trace.slo_class == "")
    assert (np.diff(trace.arrival_s) >= 0).all()
    assert (np.delete(trace.dependencies.n_parents, mine) == 0).all()
    kept = trace.dependencies.take(mine)
    for name in ("parents", "starts", "think_s"):
        assert (getattr(kept, name) == getattr(plain.dependencies, name)).all()
    assert (trace.prompt_tokens[mine] == plain.prompt_tokens).all()


def test_jobs_come_after_the_rows_of_a_closed_loop_which_stay_as_they_were() -> None:
    loop = {"client": {"concurrency": 3, "think_s": 1.0}, "arrivals": None, "n_requests": None, "duration_s": 60}
    batch = {"n_requests": 10, "over_s": 5.0, "lengths": FIXED, "tenant": "ops"}
    load, plain = load_of(batch=batch, max_tokens=99, **loop), load_of(**loop)
    assert load.n_timed == 10
    assert load.trace.arrival_s[-10:].tolist() == np.arange(0, 5, 0.5).tolist()
    assert load.draw_more is not None and plain.draw_more is not None
    more, same = load.draw_more(len(plain.trace)), plain.draw_more(len(plain.trace))
    assert (load.trace.prompt_tokens[:-10] == plain.trace.prompt_tokens).all()
    assert (more.prompt_tokens == same.prompt_tokens).all()
    for name in ("slo_class", "tenant", "priority", "max_tokens", "dependencies"):
        first, later = getattr(load.trace, name), getattr(more, name)
        assert first is not None and (len(first), len(later)) == (len(load.trace), len(more))
    assert load.trace.slo_class is not None and more.slo_class is not None
    assert set(load.trace.slo_class[-10:].tolist()) == {"batch"} and set(more.slo_class.tolist()) == {""}


def test_a_trace_keeps_its_own_marks_and_may_be_given_those_it_has_not(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens,tenant\n0,5,5,a\n1,5,5,b\n2,5,5,\n", encoding="utf-8")
    replayed = {"trace": {"path": str(file)}, "arrivals": None, "lengths": None, "n_requests": None}
    trace = drawn(**replayed, classes={"chat": {"share": 1.0, "priority": 2}})
    assert trace.tenant is not None
    assert trace.tenant.tolist() == ["a", "b", ""]
    assert trace.slo_class is not None
    assert trace.slo_class.tolist() == ["chat"] * 3
    with pytest.raises(TraceError, match=r"workload\.tenants: the trace has a column tenant"):
        drawn(**replayed, tenants={"x": 1.0})
