"""Studies name reservations of KV as runs do: else they recommend more replicas for what a key would change."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from simserve import load_scenario
from simserve.metrics.figures import Summary
from simserve.metrics.kv_json import KvUseJson, ReservationJson
from simserve.report.sweep.words import warnings as words_of
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.capacity.rate import study
from simserve.study.compare.compare import compare, read_side
from simserve.study.plan.facts import plan_facts
from simserve.study.plan.fleet_search import FleetSearch
from simserve.study.plan.options import Demand, Fleets, Option
from simserve.study.plan.outcome import Bounds, OptionOutcome, settled, sized
from simserve.study.plan.plan import PlanQuestion, planned
from simserve.study.run_seeds import Run
from simserve.study.sweep.facts import sweep_facts
from simserve.study.sweep.run import run_row, task_of
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario
from tests.study.plan_world import World
from tests.study.served import as_runs, runs_at
from tests.study.sweeps import made_up
from tests.study.sweeps import run as row_of

SIZES = {"at_once": 3, "reserved_tokens": 131_072, "used_tokens": 850, "longest_output_tokens": 1689}
KV = KvUseJson(reservation=ReservationJson(waits_frac=1.0, is_estimate=False, max_tokens=None, without=None, **SIZES))
TEXT = (
    "each request reserves 131,072 tokens of KV but uses about 850, so a replica holds 3 at once and others wait. "
    "Set workload.max_tokens (the longest answer has 1,689 tokens)"
)


def _with(run: Run, *, is_held_up: bool) -> Summary:
    return run.summary.model_copy(update={"kv": KV} if is_held_up else {})


def test_capacity_names_them_on_both_sides_of_its_answer(tmp_path: Path) -> None:
    question = CapacityQuestion(load_scenario(write_scenario(tmp_path)), 0.99, 0.05)
    plain = runs_at({"ttft_s": lambda load: 0.0 if load < 3.0 else 0.5})
    for most, is_said in ((2.0, False), (99.0, True)):

        def runs(load: float, seeds: Sequence[int], most: float = most) -> list[Run]:
            return [Run(_with(run, is_held_up=load < most), run.sample) for run in plain(load, seeds)]

        assert (TEXT in study(question, runs).answer.warnings) == is_said


class Reserving(World):
    """Fleets of fewer than four replicas wait for reserved blocks."""

    def __call__(self, replicas: tuple[int, ...], scale: float, seeds: Any) -> list[Run]:
        return as_runs(_with(run, is_held_up=sum(replicas) < 4) for run in super().__call__(replicas, scale, seeds))


def test_a_plan_names_them_where_one_replica_fewer_waits_for_them(tmp_path: Path) -> None:
    option, bounds = Option("h100-sxm", 1, is_disaggregated=False), Bounds(0.99, 0, 64)
    scenario = load_scenario(write_scenario(tmp_path))
    demand = Demand("arrivals", scenario)
    for world, is_said in ((Reserving(0.3), True), (World(0.3), False)):
        known = OptionOutcome(option, "too many", fleets=Fleets(scenario, option))
        search_of = FleetSearch(world, 0.99, range(3, 11), is_disaggregated=False)
        outcome = settled(sized(known, search_of, demand, bounds), demand, bounds)
        plan = planned(PlanQuestion(scenario, bounds), demand, {"h100-sxm": 4.0}, [outcome])
        assert (TEXT in plan_facts(plan).warnings) == is_said


def test_a_sweep_names_the_points_whose_runs_wait(tmp_path: Path) -> None:
    result = sweep_facts(made_up(tmp_path, [row_of(warnings=[TEXT])], [row_of()], [row_of(warnings=[TEXT])]))
    assert words_of(result) == [f"point 0 (replicas 1) and 1 more: {TEXT}"]
    assert words_of(sweep_facts(made_up(tmp_path, [row_of(warnings=[TEXT])]))) == [TEXT]


def slow(folder: Path, **changes: Any) -> Path:
    """Return a scenario whose four requests at once use a twentieth of what they reserve."""
    load = {"arrivals": {"kind": "poisson", "rate_per_s": 20}, "n_requests": 120}
    load |= {"lengths": {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 100}, **changes}
    pool = {"scheduler": {"kind": "trtllm"}, "num_gpu_blocks": 500, "max_model_len": 4000}
    return write_scenario(folder, engine="trtllm", workload=load, cluster={"pools": [pool]})


def test_a_run_of_a_sweep_and_a_comparison_of_folders_carry_them(tmp_path: Path) -> None:
    for name, changes in (("a", {}), ("b", {"max_tokens": 100})):
        scenario = slow(tmp_path, **changes)
        row = run_row(task_of(load_scenario(scenario), 3))
        assert row.status == "finished"
        assert any("reserves 4,000 tokens of KV but uses about 200" in text for text in row.warnings) == (name == "a")
        invoke("run", scenario, "--out", tmp_path / name, "--no-report")
    result = compare(read_side(tmp_path / "a"), read_side(tmp_path / "b"))
    assert [text[:30] for text in result.warnings if "reserves" in text] == ["a: each request reserves 4,000"]


@pytest.mark.thorough
def test_the_gate_names_them_for_its_candidate(tmp_path: Path) -> None:
    scenario, gate = slow(tmp_path), ("--baseline", tmp_path / "base.json", "--tolerance", 0.6)
    invoke("check", scenario, *gate, "--update")
    assert (
        "warning: each request reserves 4,000 tokens of KV but uses about 200" in invoke("check", scenario, *gate).err
    )
