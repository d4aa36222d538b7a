"""Every file that a command reads: what is no regular file, too large or too deep is refused in a sentence."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from simserve import input_files
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario

COMMANDS: dict[str, tuple[str, ...]] = {
    "a.yaml": ("explain", "{file}"),
    "model.json": ("explain", "{scenario}", "--set", "model={file}"),
    "calibration.json": ("explain", "{scenario}", "--set", "calibration={file}"),
    "profile.json": ("explain", "{scenario}", "--set", "workload.lengths={{kind: profile, name: {file}}}"),
    "baseline.json": ("check", "{scenario}", "--baseline", "{file}"),
    "compared.json": ("compare", "{scenario}", "{file}"),
    "trace.csv": ("trace", "info", "{file}"),
    "trace.parquet": ("trace", "info", "{file}"),
    "log.jsonl": ("validate", "{file}", "--scenario", "{scenario}"),
    "points.yaml": ("sweep", "{scenario}", "--points", "{file}"),
    "points.csv": ("sweep", "{scenario}", "--points", "{file}"),
    "runs.csv": ("validate", "{file}"),
    "timings.csv": ("calibrate", "h100-sxm", "--from", "{file}", "--out", "{folder}/out"),
    "plan/plan.json": ("export", "{folder}", "--xlsx", "{folder}.xlsx"),
    "run/summary.json": ("report", "{folder}"),
}


def pipe(file: Path) -> None:
    os.mkfifo(file)


def device(file: Path) -> None:
    file.symlink_to("/dev/zero")


def folder(file: Path) -> None:
    file.mkdir()


def huge(file: Path) -> None:
    with file.open("wb") as sparse:
        sparse.truncate(input_files.TRACE_BYTES + 1)


def deep(file: Path) -> None:
    brackets = "[" * 40_000
    file.write_text(brackets if file.suffix == ".yaml" else brackets + "]" * 40_000)


def long_number(file: Path) -> None:
    file.write_text('{"hidden_size": ' + "9" * 5_000 + "}")


SOME = ("a.yaml", "calibration.json", "trace.csv")
CASES = [(name, spoil) for spoil in (pipe, deep) for name in COMMANDS]
CASES += [(name, spoil) for spoil in (device, folder, huge, long_number) for name in SOME]


@pytest.mark.parametrize(("name", "spoil"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_a_file_that_cannot_be_read_is_refused_in_a_sentence(
    name: str, spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    spoil(file)
    places = {"file": file, "folder": file.parent, "scenario": write_scenario(tmp_path)}
    outcome = invoke(*(argument.format(**places) for argument in COMMANDS[name]))
    assert outcome.exit_code == 2, outcome.err
    assert outcome.out == ""
    first = outcome.err.splitlines()[0]
    assert first.startswith("simserve: error: ")
    assert file.name in first
    assert len(first) < 400 + 3 * len(str(file))


def test_fifty_levels_are_read_and_no_more(tmp_path: Path) -> None:
    for n_levels, line in ((49, "cluster: must be a mapping"), (50, "a.yaml:1: must have at most 50 levels of lists")):
        file = tmp_path / "a.yaml"
        file.write_text("cluster: " + "[" * n_levels + "]" * n_levels)
        assert line in invoke("explain", file).err


@pytest.mark.parametrize("value", ["[" * 900, ".".join(["a"] * 2_000)], ids=["value", "key"])
def test_an_override_has_the_same_bounds(value: str, tmp_path: Path) -> None:
    option = f"gpu={value}" if value[0] == "[" else f"{value}=1"
    outcome = invoke("explain", write_scenario(tmp_path), "--set", option)
    assert outcome.exit_code == 2
    assert "must have at most 50" in outcome.err


@pytest.mark.parametrize(("n_levels", "is_read"), [(100, True), (101, False), (100_000, False)])
def test_a_hundred_levels_of_json_are_read_and_no_more(n_levels: int, is_read: bool) -> None:
    text = "[" * n_levels + "]" * n_levels
    if is_read:
        assert input_files.parse_json(text) is not None
    else:
        with pytest.raises(ValueError, match="more than 100 levels"):
            input_files.parse_json(text)


def test_brackets_side_by_side_are_no_levels() -> None:
    assert len(input_files.parse_json("[" + ",".join(["[[]]"] * 500) + "]")) == 500


def test_a_file_is_unpacked_to_its_bound_and_no_further(tmp_path: Path) -> None:
    file = tmp_path / "packed"
    file.write_bytes(gzip.compress(bytes(3 * 2**20)))
    assert len(input_files.read_file(file, 3 * 2**20, may_be_gzip=True)) == 3 * 2**20
    with pytest.raises(OSError, match="is larger than 2 MiB unpacked"):
        input_files.read_file(file, 2 * 2**20, may_be_gzip=True)
    assert len(input_files.read_file(file, 2 * 2**20)) < 10_000
    file.write_bytes(bytes(2**20 + 1))
    with pytest.raises(OSError, match="is larger than 1 MiB"):
        input_files.read_file(file, 2**20)


def test_a_nul_character_in_a_path_is_refused(tmp_path: Path) -> None:
    for key in ("model", "calibration"):
        outcome = invoke("explain", write_scenario(tmp_path, **{key: "a\0b/config.json"}))
        assert outcome.exit_code == 2, outcome.err
        assert f"{key}: " in outcome.err


def test_what_is_not_text_in_parquet_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / "trace.parquet"
    pq.write_table(pa.table({"arrival_s": [0.0], "prompt_tokens": [5], "output_tokens": [5]}), file)
    content = file.read_bytes()
    file.write_bytes(content.replace(b"prompt_tokens", b"prompt\xff\xff\xffkens"))
    outcome = invoke("trace", "info", file)
    assert outcome.exit_code == 2, outcome.err
    assert outcome.err.startswith(f"simserve: error: {file}: cannot be read as parquet (")
    pq.write_table(pa.Table.from_arrays([pa.array([1.0])] * 2, names=["arrival_s"] * 2), file)
    assert "columns must have distinct names, got arrival_s twice" in invoke("trace", "info", file).err
