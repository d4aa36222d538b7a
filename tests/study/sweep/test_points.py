"""Which points a sweep has: the grammar of --vary, files of points, the order of a grid, and what is refused."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.errors import ScenarioError, SimserveError
from simserve.scenario.template import Override, Template
from simserve.study.sweep.points import SweepAxis, SweepPoint, grid, parse_axis, resolved
from simserve.study.sweep.question import read_points
from simserve.tables.parquet import write_columns
from tests.cli.scenarios import write_scenario

TENSOR = "cluster.pools.0.parallel.tensor"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a.b=1,2,4", [1, 2, 4]),
        ("gpu=h100-sxm,h200-sxm", ["h100-sxm", "h200-sxm"]),
        ("a=[8,40],[10,50]", [[8, 40], [10, 50]]),
        (
            "a={kind: chunked},{kind: static, batch_size: 8}",
            [{"kind": "chunked"}, {"kind": "static", "batch_size": 8}],
        ),
        ('a="0.12","0.14"', ["0.12", "0.14"]),
        ("a=null,5", [None, 5]),
        ("a=true,false", [True, False]),
        ("a=1..4", [1, 2, 3, 4]),
        ("a=4..32:8", [4, 12, 20, 28]),
        ("a=0.1..0.4:0.1", [0.1, 0.2, 0.3, 0.4]),
        ("a=-1..1", [-1, 0, 1]),
        ("a=1..2,8,16..17", [1, 2, 8, 16, 17]),
        (" a . b = 7", [7]),
    ],
)
def test_values_are_yaml_and_ranges_have_both_ends(text: str, values: list[Any]) -> None:
    assert list(parse_axis(text).values) == values


def test_one_and_true_and_a_text_are_three_values() -> None:
    assert parse_axis("a=1,true,'1',[1],[true]").values == (1, True, "1", [1], [True])


def test_thousands_of_values_are_compared_without_looking_at_all_pairs() -> None:
    started_s = time.process_time()
    assert len(parse_axis("a=1..50000").values) == 50_000
    assert time.process_time() - started_s < 5  # all pairs take longer, 0.1 s is enough


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a", "must be key.path=value,value,..."),
        ("=1,2", "must be key.path=value,value,..."),
        ("a..b=1", "must be key.path=value,value,..."),
        ("a=", "needs at least one value"),
        ("a=[1,2", "its values cannot be read as YAML"),
        ("a=8..1", "a range goes upwards"),
        ("a=1..8:0", "a range goes upwards"),
        ("a=1..1000000000", "a sweep has at most 100,000 runs"),
        ("a=1,2,1", "each value must be given once, got 1"),
        ("a=1..3,2", "each value must be given once, got 2"),
        ("a=1,1.0", "each value must be given once, got 1.0"),
        ("a=true,true", "each value must be given once, got true"),
    ],
)
def test_what_is_no_list_of_values_is_refused_with_its_place(text: str, sentence: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_axis(text)
    assert str(caught.value).startswith(f"command line --vary {text}: {sentence}")


def test_the_first_key_varies_slowest_and_points_count_from_0() -> None:
    points = grid([SweepAxis("a", (1, 2)), SweepAxis("b.c", ("x", "y"))], [], 1)
    assert [(point.number, point.values) for point in points] == [
        (0, {"a": 1, "b.c": "x"}),
        (1, {"a": 1, "b.c": "y"}),
        (2, {"a": 2, "b.c": "x"}),
        (3, {"a": 2, "b.c": "y"}),
    ]


def test_listed_points_are_each_combined_with_the_grid() -> None:
    listed = [(Override("", ("a",), 1),), (Override("", ("a",), 5), Override("", ("b",), 6))]
    points = grid([SweepAxis("c", (7, 8))], listed, 1)
    assert [point.values for point in points] == [
        {"a": 1, "c": 7},
        {"a": 1, "c": 8},
        {"a": 5, "b": 6, "c": 7},
        {"a": 5, "b": 6, "c": 8},
    ]


@pytest.mark.parametrize(
    ("axes", "n_seeds", "sentence"),
    [
        ([], 1, "a sweep needs keys to vary"),
        ([SweepAxis("a", (1,)), SweepAxis("a", (2,))], 1, "each key is varied once, got a"),
        ([SweepAxis("seed", (1, 2))], 1, "all points share the same seeds"),
        ([SweepAxis("a", tuple(range(1000)))], 101, "a sweep has at most 100,000 runs, got 101,000"),
    ],
)
def test_grids_that_make_no_sense_are_refused(axes: list[SweepAxis], n_seeds: int, sentence: str) -> None:
    with pytest.raises(ScenarioError, match=sentence):
        grid(axes, [], n_seeds)


def points_of(folder: Path, *axes: str) -> tuple[SweepPoint, ...]:
    return resolved(Template.of(write_scenario(folder)), grid([parse_axis(text) for text in axes], [], 1))


def test_a_combination_that_does_not_go_together_is_a_point_with_a_reason(tmp_path: Path) -> None:
    one, three = points_of(tmp_path, f"{TENSOR}=1,3")
    assert one.scenario is not None
    assert one.scenario.cluster.pools[0].parallel.tensor == 1
    assert three.scenario is None
    assert "must divide the model's 32 attention heads, got 3" in str(three.reason)


def test_what_does_not_fit_one_card_may_fit_another(tmp_path: Path) -> None:
    points = points_of(tmp_path, "model=llama-3.1-8b,llama-3.1-70b", f"{TENSOR}=1,4")
    assert [point.scenario is None for point in points] == [False, False, True, False]
    assert "does not fit the memory of 1 h100-sxm" in str(points[2].reason)


def test_an_unknown_key_is_told_once_for_all_its_values(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        points_of(tmp_path, "cluster.pools.0.repl=1..4", "name=a,b")
    assert str(caught.value) == "command line --vary cluster.pools.0.repl: unknown key; did you mean replicas?"


@pytest.mark.parametrize(
    ("axis", "sentence"),
    [
        ("cluster.pools.0.replica=1,2", "unknown key; did you mean replicas?"),
        ("gpu=h100-sxm,h101-sxm", "no such GPU in the catalog, got 'h101-sxm'; choose from h100-pcie, h100-sxm"),
        ("cluster.pools.3.replicas=1,2", "there is no such item"),
        ("cluster.pools.0.replicas=1,two", "must be a whole number"),
        ("cluster.router=random,rundom", "did you mean random?"),
        ("workload.lengths.output_tokens=0,8", "must be at least 1"),
    ],
)
def test_a_key_that_does_not_exist_or_a_value_that_never_fits_is_a_mistake(
    tmp_path: Path, axis: str, sentence: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        points_of(tmp_path, axis, "name=a,b")
    assert sentence in str(caught.value)
    assert all(line.startswith("command line --vary ") for line in str(caught.value).splitlines())


def test_arguments_that_fit_one_policy_alone_spoil_only_the_points_of_the_other(tmp_path: Path) -> None:
    points = points_of(tmp_path, "cluster.router.kind=random,weighted", "cluster.router.outstanding=1,2")
    assert [point.scenario is None for point in points] == [True, True, False, False]
    assert "outstanding" in str(points[0].reason)


def test_where_every_point_is_wrong_it_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        points_of(tmp_path, f"{TENSOR}=3,5")
    assert [problem.place.rpartition("=")[2] for problem in caught.value.problems] == ["3", "5"]


def test_a_mistake_of_the_file_itself_is_told_once(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path, gpu="h101-sxm")
    with pytest.raises(ScenarioError) as caught:
        resolved(Template.of(scenario), grid([SweepAxis("name", ("a", "b"))], [], 1))
    assert len(caught.value.problems) == 1


LISTED: list[dict[str, Any]] = [{"gpu": "h100-sxm", TENSOR: 1}, {"gpu": "h200-sxm"}]


def test_a_csv_has_a_point_a_line_and_empty_cells_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "points.csv"
    file.write_text(f"gpu,{TENSOR}\nh100-sxm,1\nh200-sxm,\n")
    assert [point.values for point in grid([], read_points(file), 1)] == LISTED


def test_a_yaml_is_a_list_of_points(tmp_path: Path) -> None:
    file = tmp_path / "points.yaml"
    file.write_text(f"- {{gpu: h100-sxm, {TENSOR}: 1}}\n- gpu: h200-sxm\n")
    assert [point.values for point in grid([], read_points(file), 1)] == LISTED


def test_a_parquet_has_a_point_a_row(tmp_path: Path) -> None:
    file = tmp_path / "points.parquet"
    write_columns(file, {"gpu": np.array(["h100-sxm", "h200-sxm"]), TENSOR: np.array([1.0, np.nan])})
    assert [point.values for point in grid([], read_points(file), 1)] == LISTED


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("points.txt", "", "must end in .csv, .parquet or .yaml"),
        ("points.csv", "gpu\n", "needs at least one point"),
        ("points.csv", "gpu,model\nh100-sxm\n", "line 2: must have 2 cells"),
        ("points.csv", "gpu\nh100-sxm,1\n", "line 2: must have 1 cells"),
        ("points.csv", "gpu\n[1\n", "line 2: a cell is not YAML"),
        ("points.csv", "a..b\n1\n", "columns must be keys of the scenario"),
        ("points.yaml", "gpu: h100-sxm\n", "must be a list of points"),
        ("points.yaml", "- [1\n", "is not YAML"),
        ("points.yaml", "- {gpu: a, gpu: b}\n", "is given twice"),
        ("points.parquet", "no", "cannot be read as parquet"),
    ],
)
def test_files_that_hold_no_points_are_refused(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(SimserveError) as caught:
        read_points(file)
    assert sentence in str(caught.value)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["gone.csv", "gone.parquet", "gone.yaml"])
def test_a_file_that_is_not_there_is_said(tmp_path: Path, name: str) -> None:
    with pytest.raises(SimserveError, match="there is no such file"):
        read_points(tmp_path / name)


def test_a_mistake_of_a_listed_point_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "points.csv"
    file.write_text("gpu\nh100-sxm\nh101-sxm\n")
    with pytest.raises(ScenarioError) as caught:
        resolved(Template.of(write_scenario(tmp_path)), grid([], read_points(file), 1))
    assert str(caught.value).startswith(f"command line --points {file} line 3: gpu=h101-sxm: no such GPU")
