"""Results: what is written can be read back, and the metrics can be made again from the parquet files alone."""

import builtins
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.errors import OutputError
from simserve.metrics.result_folder import load_results
from simserve.metrics.results import Results
from simserve.study.run_seeds import STUDIED
from simserve.tables.columns import Columns
from simserve.tables.facts import RunFacts
from simserve.tables.run_tables import RunTables
from simserve.tables.schema import REQUESTS, SPANS, SPLIT, STEPS, TABLES
from tests.effort import examples
from tests.metrics.stories import Life, S, Teller, pool_facts, random_story, run_facts, tables

DERIVED = ("queue_s", "ttft_s", "tpot_s", "max_itl_s", "e2e_s", "in_window", "slo_met")
"""Columns of requests that the metrics add to the engine's."""

SLO = {"ttft_s": 2.0, "itl_s": 0.5}
TIMES_OF_STEPS = ("start_s", "end_s", "first_step_s", "last_step_s")


def story(seed: int = 3, **changes: Any) -> tuple[RunTables, RunFacts]:
    _, run = random_story(seed, n_requests=40, most_rows=150)
    return run, run_facts(run, n_replicas=2, slo=SLO, **changes)


def again(loaded: Results) -> Results:
    """The metrics made from nothing but what the parquet files hold."""
    requests = {name: column for name, column in loaded.columns["requests"].items() if name not in DERIVED}
    run = RunTables(requests, loaded.columns["steps"], loaded.columns["spans"])
    return Results.from_run(run, loaded.facts, loaded.scenario_yaml)


def same(left: Results, right: Results, *names: str) -> None:
    for name in names:
        pd.testing.assert_frame_equal(getattr(left, name), getattr(right, name))


@pytest.mark.parametrize("seed", range(5))
def test_what_is_written_reads_back_the_same(tmp_path: Path, seed: int) -> None:
    run, facts = story(seed)
    results = Results.from_run(run, facts, "name: story\n")
    results.write(tmp_path / "out")
    loaded = load_results(tmp_path / "out")
    same(results, loaded, *TABLES)
    assert (loaded.facts, loaded.scenario_yaml) == (facts, "name: story\n")
    assert (loaded.summary, loaded.vllm_bench) == (results.summary, results.vllm_bench)


@settings(max_examples=examples(15))
@given(st.integers(0, 10**9))
def test_all_metrics_can_be_made_again_from_the_parquet_files(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    run, facts = story(seed)
    results = Results.from_run(run, facts, "")
    out = tmp_path_factory.mktemp("again") / "out"
    results.write(out)
    remade = again(load_results(out))
    assert (remade.summary, remade.vllm_bench) == (results.summary, results.vllm_bench)
    same(remade, results, *TABLES)


def numbers(latency: dict[str, Any]) -> dict[str, Any]:
    """But for the intervals, of which so few requests have none."""
    assert set(latency["intervals"].values()) == {None}
    return {key: value for key, value in latency.items() if key != "intervals"}


def test_a_row_a_step_gives_the_same_metrics_and_every_tokens_time(tmp_path: Path) -> None:
    run, facts = story()
    results = Results.from_run(run, facts, "")
    results.write(tmp_path / "out", steps="full")
    loaded = load_results(tmp_path / "out")
    assert set(loaded.steps["n_steps"]) == {1}
    remade = again(loaded)
    assert remade.vllm_bench.pop("model_id") == results.vllm_bench.pop("model_id")
    assert remade.vllm_bench == pytest.approx(results.vllm_bench, rel=1e-12)
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s"):
        assert numbers(remade.summary[name]) == pytest.approx(numbers(results.summary[name]), rel=1e-9)
    pd.testing.assert_frame_equal(remade.requests, results.requests)


def test_steps_can_be_left_out(tmp_path: Path) -> None:
    Results.from_run(*story(), "").write(tmp_path / "out", steps="none")
    loaded = load_results(tmp_path / "out")
    assert not {"steps.parquet", "spans.parquet"} & {file.name for file in (tmp_path / "out").iterdir()}
    assert len(loaded.requests)
    with pytest.raises(OutputError, match="written without"):
        _ = loaded.steps


def test_the_columns_are_the_contracts_in_its_order() -> None:
    results = Results.from_run(*story(), "")
    assert list(results.requests.columns) == [
        "request_id",
        "arrival_s",
        "prompt_tokens",
        "output_tokens",
        "max_tokens",
        "status",
        "status_reason",
        "pool",
        "replica",
        "prefill_replica",
        "scheduled_s",
        "first_token_s",
        "finish_s",
        "queue_s",
        "preempted_s",
        "transfer_s",
        "ttft_s",
        "tpot_s",
        "max_itl_s",
        "e2e_s",
        "n_preemptions",
        "n_recomputed_tokens",
        "cached_tokens",
        "session_id",
        "turn",
        "attempt",
        "priority",
        "slo_class",
        "in_window",
        "slo_met",
        "transfer_wait_s",
        "n_swaps",
        "host_cached_tokens",
        "disk_cached_tokens",
        "session_requests",
        "first_sent_s",
        "gave_up_s",
        "wasted_tokens",
        "tenant",
        "decode_cached_tokens",
        "front_end_s",
        "queue_seats_s",
        "queue_blocks_s",
        "queue_budget_s",
        "queue_turn_s",
        "prefill_s",
        "prefill_wait_s",
        "link_s",
        "decode_s",
        "interference_s",
        "copy_s",
        "recompute_s",
        "batch_wait_s",
        "n_failures",
        "n_migrations",
    ]
    assert list(results.steps.columns)[:15] == [
        "replica",
        "step",
        "decode_step",
        "n_steps",
        "start_s",
        "end_s",
        "first_step_s",
        "last_step_s",
        "prefill_tokens",
        "decode_requests",
        "kv_tokens",
        "kv_blocks_used",
        "kv_blocks_reserved",
        "queue_len",
        "blocked_by",
    ]
    assert list(results.spans.columns)[:4] == ["request_id", "replica", "first_step", "last_step"]


def test_what_never_came_is_null_in_the_file_and_never_nan(tmp_path: Path) -> None:
    lives = [Life(0, 5, status="rejected"), Life(0, 1)]
    teller = Teller(lives)
    teller.start(1)
    teller.row(1 * S, joins=(1,))
    run = tables(lives, [teller])
    Results.from_run(run, run_facts(run), "").write(tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "requests.parquet")
    first, second = table.to_pylist()
    nulls = {name for name, value in first.items() if value is None}
    assert nulls >= {
        "replica",
        "pool",
        "scheduled_s",
        "first_token_s",
        "finish_s",
        "ttft_s",
        "tpot_s",
        "e2e_s",
        "slo_met",
    }
    assert (first["status"], first["status_reason"]) == ("rejected", "too long")
    assert (second["tpot_s"], second["max_itl_s"], second["status_reason"]) == (None, None, None)
    assert (second["ttft_s"], second["replica"], second["in_window"]) == (1.0, 0, True)


def test_json_is_strict_even_of_a_run_in_which_nothing_was_measured(tmp_path: Path) -> None:
    lives = [Life(0, 5, status="rejected")]
    run = tables(lives, [Teller(lives)])
    facts = run_facts(run, slo=SLO, measure={"warmup_s": 1e9})
    Results.from_run(run, facts, "").write(tmp_path / "out")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for name in ("summary.json", "vllm_bench.json"):
        json.loads((tmp_path / "out" / name).read_text(), parse_constant=refuse)


def test_a_run_without_requests_can_be_written_and_read(tmp_path: Path) -> None:
    lives: list[Life] = []
    run = tables(lives, [Teller(lives)])
    Results.from_run(run, run_facts(run, slo=SLO), "").write(tmp_path / "out")
    loaded = load_results(tmp_path / "out")
    assert len(loaded.requests) == 0
    assert again(loaded).summary == loaded.summary


def test_each_file_carries_schema_and_units(tmp_path: Path) -> None:
    Results.from_run(*story(), "").write(tmp_path / "out")
    for name in TABLES:
        schema = pq.read_schema(tmp_path / "out" / f"{name}.parquet")
        assert schema.metadata[b"simserve.schema"] == b"simserve/1"
        seconds = [field for field in schema if field.name.endswith("_s") and "per_s" not in field.name]
        assert all(field.metadata == {b"unit": b"s"} for field in seconds)


def test_the_same_run_writes_the_same_bytes_whatever_time_it_took(tmp_path: Path) -> None:
    for name, wall_s in (("one", 1.0), ("two", 2.0)):
        Results.from_run(*story(wall_s=wall_s), "").write(tmp_path / name)
    for name in TABLES:
        one, two = (tmp_path / folder / f"{name}.parquet" for folder in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_the_page_is_made_before_anything_is_written(tmp_path: Path) -> None:
    results = Results.from_run(*story(), "")

    def broken(_: Results) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        results.write(tmp_path / "out", report=broken)
    assert not list(tmp_path.iterdir())
    results.write(tmp_path / "out", report=lambda given: f"<p>{given.facts.name}</p>")
    assert (tmp_path / "out" / "report.html").read_text() == "<p>story</p>"


@pytest.mark.parametrize("slo", [{}, {"ttft_s": 0.5}, {"itl_s": 0.5}])
@pytest.mark.parametrize("has_classes", [False, True])
def test_a_decision_needs_neither_the_figures_nor_what_only_they_need(slo: dict[str, float], has_classes: bool) -> None:
    _, run = random_story(5, n_requests=40, most_rows=150)
    if has_classes:
        run.requests["slo_class"] = np.array(["bulk"] * len(run.requests["arrival_s"]))
    alone, whole = (Results.from_run(run, run_facts(run, n_replicas=2, slo=slo), "") for _ in range(2))
    sample = alone.sample
    assert not {"split", "use", "_series"} & vars(alone._of).keys()
    assert not alone._of._known  # type: ignore[union-attr]
    assert whole.figures.requests.arrived >= 0
    assert {name: tail.ratios.tolist() for name, tail in sample.tails.items()} == {
        name: tail.ratios.tolist() for name, tail in whole.sample.tails.items()
    }
    assert bool(sample.tails) == bool(slo)


@pytest.mark.parametrize("slo", [{}, {"ttft_s": 0.5, "itl_s": 0.1}])
@pytest.mark.parametrize("has_classes", [False, True])
def test_a_part_of_the_figures_is_that_of_all_and_no_other_can_be_read(
    slo: dict[str, float], has_classes: bool
) -> None:
    _, run = random_story(5, n_requests=40, most_rows=150)
    if has_classes:
        run.requests["slo_class"] = np.array(["bulk"] * len(run.requests["arrival_s"]))
    alone, whole = (Results.from_run(run, run_facts(run, n_replicas=2, slo=slo), "") for _ in range(2))
    keys = (*STUDIED, "time_split", "busy_frac", "transfer")
    part = alone.part(keys)
    assert [getattr(part, key) for key in keys] == [getattr(whole.figures, key) for key in keys]
    for left_out in ("mfu", "fleet", "decision", "answer"):
        with pytest.raises(AttributeError, match=left_out):
            part.at(left_out)
    assert pickle.loads(pickle.dumps(part)).__dict__.keys() == set(keys)


def test_the_engines_tables_are_not_changed() -> None:
    run, facts = story()
    before = {name: np.array(column) for name, column in run.requests.items() if isinstance(column, np.ndarray)}
    assert Results.from_run(run, facts, "").contents.columns
    for name, column in before.items():
        np.testing.assert_array_equal(run.requests[name], column)
    assert not set(DERIVED) & run.requests.keys()


def test_ids_that_the_load_gave_come_back_as_text(tmp_path: Path) -> None:
    run, facts = story()
    ids = np.array([f"chat-{i}-ü" for i in range(len(run.requests["arrival_s"]))])
    run.requests.update(request_id=ids, session_id=ids, turn=np.arange(len(ids)), slo_class=ids)
    Results.from_run(run, facts, "").write(tmp_path / "out")
    loaded = load_results(tmp_path / "out")
    assert loaded.requests["request_id"].tolist() == loaded.requests["session_id"].tolist() == ids.tolist()
    assert loaded.requests["turn"].tolist() == list(range(len(ids)))


def test_neither_reducing_nor_writing_needs_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = builtins.__import__

    def importing(name: str, *others: Any, **more: Any) -> Any:
        assert name.split(".")[0] not in ("pandas", "scipy"), f"{name} was imported"
        return honest(name, *others, **more)

    monkeypatch.setattr(builtins, "__import__", importing)
    Results.from_run(*story(), "").write(tmp_path / "out", steps="full")


@pytest.mark.parametrize("missing", ["summary.json", "vllm_bench.json", "scenario.yaml", "requests.parquet"])
def test_a_folder_that_lacks_a_file_is_named_with_it(tmp_path: Path, missing: str) -> None:
    Results.from_run(*story(), "").write(tmp_path / "out")
    (tmp_path / "out" / missing).unlink()
    with pytest.raises(OutputError, match=f"{missing}: no such file"):
        load_results(tmp_path / "out")


def test_no_folder_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no such folder"):
        load_results(tmp_path / "nowhere")


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    Results.from_run(*story(), "").write(tmp_path / "out")
    for name in ("steps.parquet", "summary.json"):
        (tmp_path / "out" / name).write_bytes(b"\xffnot what it was")
        with pytest.raises(OutputError, match=f"{name}: cannot be read"):
            load_results(tmp_path / "out")


def test_a_replica_that_the_run_did_not_have_is_refused(tmp_path: Path) -> None:
    Results.from_run(*story(), "").write(tmp_path / "out")
    path = tmp_path / "out" / "timeseries.parquet"
    table = pq.read_table(path)
    at = table.column_names.index("replica")
    last = pc.equal(table["replica"], 1)
    for other, rule in ((2, "must be from 0 to 1, got 2"), (-1, "must be from 0 to 1, got -1")):
        replica = pc.if_else(last, pa.scalar(other, table["replica"].type), table["replica"])
        pq.write_table(table.set_column(at, table.schema.field(at), replica), path)
        with pytest.raises(OutputError, match=rf"timeseries.parquet: replica: {rule}"):
            load_results(tmp_path / "out")


@pytest.mark.parametrize("text", ['{"schema": "simserve/9", "window": {}}', '{"schema": "simserve/1"}', "{}"])
def test_a_summary_of_another_schema_or_half_of_one_is_refused(tmp_path: Path, text: str) -> None:
    Results.from_run(*story(), "").write(tmp_path / "out")
    (tmp_path / "out" / "summary.json").write_text(text)
    with pytest.raises(OutputError, match=r"summary.json: (schema: must be 'simserve/1'|\w+: is missing)"):
        load_results(tmp_path / "out")


@pytest.mark.parametrize(
    ("facts", "rule"),
    [
        ('{"name": "story"}', "facts.seed: is missing"),
        *((facts, "facts: must be those of a run") for facts in ("{", "[]", "")),
    ],
)
def test_facts_that_are_not_ours_are_refused(tmp_path: Path, facts: str, rule: str) -> None:
    Results.from_run(*story(), "").write(tmp_path / "out")
    path = tmp_path / "out" / "requests.parquet"
    table = pq.read_table(path)
    metadata = {**table.schema.metadata, b"simserve.facts": facts.encode()}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(OutputError, match=f"requests.parquet: {rule}.*; run the command again"):
        load_results(tmp_path / "out")


def columns_of(fields: Any, columns: Columns) -> set[str]:
    return {field.name for field in fields} ^ set(columns)


def test_the_schemas_name_what_the_engine_hands_over_and_nothing_else() -> None:
    run, _ = story()
    assert columns_of(REQUESTS, run.requests) == {*DERIVED, *SPLIT}
    assert columns_of(STEPS, run.steps) == set()
    assert columns_of(SPANS, run.spans) == set()


def test_pools_that_answer_whole_have_no_gaps() -> None:
    lives = [Life(0, 3)]
    teller = Teller(lives)
    teller.start(0)
    teller.row(1 * S, joins=(0,))
    teller.row(1 * S, n=2)
    run = tables(lives, [teller], whole=True)
    results = Results.from_run(run, run_facts(run, pools=(pool_facts(streamed=False),)), "")
    assert results.requests["max_itl_s"].tolist() == [0.0]
    assert (results.summary["itl_s"]["n"], results.summary["itl_s"]["max"]) == (2, 0.0)
    assert results.vllm_bench["max_output_tokens_per_s"] == 3.0
