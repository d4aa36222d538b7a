"""A result is written whole or not at all, and only over an earlier result."""

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from simserve.errors import OutputError
from simserve.tables import swap
from simserve.tables.folder import CAPACITY, KINDS, RUN, Kind, check_folder, kind_of, result_folder


def write(directory: Path, content: str = "new") -> None:
    with result_folder(directory) as folder:
        for name in ("requests.parquet", "summary.json"):
            (folder / name).write_text(content)


def contents(directory: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in directory.iterdir()}


def only(parent: Path, *names: str) -> bool:
    """Check that no other file is left."""
    return {file.name for file in parent.iterdir()} == set(names)


def test_a_new_folder_is_made_with_those_above_it(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b" / "out")
    assert contents(tmp_path / "a" / "b" / "out") == {"requests.parquet": "new", "summary.json": "new"}
    assert only(tmp_path / "a" / "b", "out")


def test_an_earlier_result_is_replaced_whole(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    (tmp_path / "out" / "report.html").write_text("old page")
    write(tmp_path / "out")
    assert contents(tmp_path / "out") == {"requests.parquet": "new", "summary.json": "new"}
    assert only(tmp_path, "out")


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out")
    assert only(tmp_path, "out")


def test_a_relative_folder_is_taken_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("out"))
    assert only(tmp_path, "out")


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert set(contents(tmp_path / "disk")) == {"requests.parquet", "summary.json"}


def test_links_that_go_in_circles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(OutputError, match="must be writable"):
        write(tmp_path / "a")
    assert only(tmp_path, "a", "b")


@pytest.mark.parametrize("before", ["new", "earlier"])
@pytest.mark.parametrize("failure", [KeyboardInterrupt, ZeroDivisionError, SystemExit])
def test_whatever_goes_wrong_leaves_what_was_there(tmp_path: Path, before: str, failure: type[BaseException]) -> None:
    place = tmp_path / "runs" / "out"
    if before == "earlier":
        write(place, "old")
    with pytest.raises(failure), result_folder(place) as folder:
        (folder / "requests.parquet").write_text("half")
        raise failure
    if before == "earlier":
        assert contents(place) == {"requests.parquet": "old", "summary.json": "old"}
        assert only(place.parent, "out")
    else:
        assert only(tmp_path)


@pytest.mark.parametrize("stranger", ["thesis.tex", "requests.csv", ".git"])
def test_a_folder_that_holds_anything_else_is_refused(tmp_path: Path, stranger: str) -> None:
    write(tmp_path / "out", "old")
    (tmp_path / "out" / stranger).write_text("precious")
    with pytest.raises(OutputError, match=f"only an earlier result, got {stranger}; choose another --out"):
        write(tmp_path / "out")
    assert (tmp_path / "out" / stranger).read_text() == "precious"
    assert (tmp_path / "out" / "summary.json").read_text() == "old"


def test_a_folder_with_only_somebodys_scenario_is_refused(tmp_path: Path) -> None:
    """A scenario.yaml is one file of a result, but a result has others."""
    (tmp_path / "scenario.yaml").write_text("mine")
    with pytest.raises(OutputError, match=r"got scenario.yaml without requests.parquet and summary.json"):
        write(tmp_path)
    assert contents(tmp_path) == {"scenario.yaml": "mine"}


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("precious")
    with pytest.raises(OutputError, match="must be a folder, got a file"):
        write(tmp_path / "out")
    with pytest.raises(OutputError, match="Not a directory"):
        write(tmp_path / "out" / "inside")
    assert contents(tmp_path) == {"out": "precious"}


def test_every_file_of_the_contract_may_be_there(tmp_path: Path) -> None:
    for name in RUN.files:
        (tmp_path / name).write_text("")
    check_folder(tmp_path)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_kind_of_a_folder_is_told_by_what_it_always_holds(tmp_path: Path, kind: Kind) -> None:
    with result_folder(tmp_path / "out", kind) as folder:
        for name in kind.required_files:
            (folder / name).write_text("")
    assert kind_of(tmp_path / "out") == kind


def test_a_result_of_another_kind_is_not_written_over(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    with pytest.raises(OutputError, match=r"only an earlier result, got requests\.parquet"):
        check_folder(tmp_path / "out", CAPACITY)


@pytest.mark.parametrize(("names", "got"), [((), "nothing"), (("requests.parquet", "thesis.tex"), "requests.parquet")])
def test_a_folder_that_no_command_wrote_to_its_end_has_no_kind(
    tmp_path: Path, names: tuple[str, ...], got: str
) -> None:
    for name in names:
        (tmp_path / name).write_text("")
    with pytest.raises(OutputError, match=f"must hold requests.parquet and summary.json, or .*, got {got}"):
        kind_of(tmp_path)
    with pytest.raises(OutputError, match="no such folder"):
        kind_of(tmp_path / "absent")


def test_a_full_disk_is_said_plainly_and_leaves_the_earlier_result(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    with (
        pytest.raises(OutputError, match=r"out: must be writable, got No space left on device; free space"),
        result_folder(tmp_path / "out") as folder,
    ):
        (folder / "requests.parquet").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert contents(tmp_path / "out") == {"requests.parquet": "old", "summary.json": "old"}
    assert only(tmp_path, "out")


FILL = """
import resource, signal, sys
import numpy as np
from pathlib import Path
from simserve.errors import OutputError
from simserve.tables.folder import result_folder
from simserve.tables.parquet import write_columns

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with result_folder(Path(sys.argv[1])) as folder:
        write_columns(folder / "requests.parquet", {"x": np.random.default_rng(0).random(1_000_000)})
except OutputError as error:
    print(error)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on the size of files")
def test_a_parquet_file_that_the_disk_does_not_take_is_said_plainly(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(tmp_path / "out")], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"{tmp_path / 'out'}: must be writable, got File too large")
    assert contents(tmp_path / "out") == {"requests.parquet": "old", "summary.json": "old"}
    assert only(tmp_path, "out")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_said_plainly(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(OutputError, match="must be writable, got Permission denied"):
        write(tmp_path / "locked" / "out")
    assert only(tmp_path / "locked")


def test_when_the_last_move_fails_the_earlier_result_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "out", "old")
    monkeypatch.setattr(swap, "_exchange", lambda new, place: False)  # as on a file system without it
    rename, calls = os.rename, []

    def failing(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OutputError, match="Input/output error"):
        write(tmp_path / "out")
    assert contents(tmp_path / "out") == {"requests.parquet": "old", "summary.json": "old"}
    assert only(tmp_path, "out")


def test_a_ctrl_c_during_the_swap_waits_until_the_result_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "out", "old")
    monkeypatch.setattr(swap, "_exchange", lambda new, place: False)
    rename = os.rename

    def interrupted(source: Path, target: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "out")
    assert contents(tmp_path / "out") == {"requests.parquet": "new", "summary.json": "new"}
    assert only(tmp_path, "out")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_result_can_be_written_from_another_thread(tmp_path: Path) -> None:
    thread = threading.Thread(target=write, args=(tmp_path / "out",))
    thread.start()
    thread.join()
    assert only(tmp_path, "out")


def test_an_earlier_result_is_never_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "out", "old")
    seen = []

    def looking(call: Callable[..., object]) -> Callable[..., object]:
        def looked(*arguments: object) -> object:
            result = call(*arguments)
            seen.append(contents(tmp_path / "out"))
            return result

        return looked

    monkeypatch.setattr(swap, "_exchange", looking(swap._exchange))
    monkeypatch.setattr(os, "rename", looking(os.rename))
    write(tmp_path / "out", "new")
    assert seen == [{"requests.parquet": "new", "summary.json": "new"}]


@pytest.mark.parametrize("has_new", [True, False])
def test_what_a_killed_swap_has_left_is_put_right_at_the_next_start(
    has_new: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "out", "old")
    os.rename(tmp_path / "out", tmp_path / ".out.earlier")
    if has_new:
        write(tmp_path / "other", "new")
        os.rename(tmp_path / "other", tmp_path / "out")
    check_folder(tmp_path / "out")
    assert contents(tmp_path / "out")["summary.json"] == ("new" if has_new else "old")
    assert only(tmp_path, "out")
    assert [record.getMessage() for record in caplog.records] == (
        [] if has_new else [f"simserve: {tmp_path / 'out'}: restored the result of before an interrupted write"]
    )


def test_the_folder_of_a_dead_process_is_swept_up(tmp_path: Path) -> None:
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "steps.parquet").write_text("half")
    write(tmp_path / "out")
    assert contents(tmp_path / "out") == {"requests.parquet": "new", "summary.json": "new"}
    assert only(tmp_path, "out")


def test_two_writers_of_one_folder_get_one_clear_message(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    with (
        result_folder(tmp_path / "out") as folder,
        pytest.raises(OutputError, match="out: another command is writing there now; wait for it, or choose another"),
    ):
        (folder / "requests.parquet").write_text("mine")
        (folder / "summary.json").write_text("mine")
        write(tmp_path / "out", "theirs")
    assert contents(tmp_path / "out")["summary.json"] == "mine"
    write(tmp_path / "out", "new")
    assert contents(tmp_path / "out")["summary.json"] == "new"


def test_the_earlier_folder_is_no_other_writers_while_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "out", "old")
    exchange = swap._exchange

    def raced(new: Path, place: Path) -> bool:
        done = exchange(new, place)
        with swap.partial_folder(place) as theirs:
            assert theirs is None
        return done

    monkeypatch.setattr(swap, "_exchange", raced)
    write(tmp_path / "out", "new")
    assert only(tmp_path, "out")


def test_a_file_that_a_killed_command_had_not_finished_is_no_stranger(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    (tmp_path / "out" / ".report.html.123.partial").write_text("half")
    write(tmp_path / "out", "new")
    assert contents(tmp_path / "out") == {"requests.parquet": "new", "summary.json": "new"}
