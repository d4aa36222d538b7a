"""Files replaced atomically, strict JSON, and facts that survive a round trip."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest

from simserve.errors import OutputError
from simserve.tables.facts import facts_from_dict, facts_to_dict
from simserve.tables.files import json_text, plain, read_json, replace_text, replace_with
from simserve.tables.swap import locked
from tests.metrics.stories import Life, Teller, pool_facts, run_facts, tables


def test_json_has_null_where_there_is_no_number() -> None:
    value = {"a": math.nan, "b": [math.inf, 1.5], "c": None, 1: "ü"}
    assert json.loads(json_text(value)) == {"a": None, "b": [None, 1.5], "c": None, "1": "ü"}


def test_numpys_numbers_become_plain_ones() -> None:
    value = plain({"a": np.float64(0.1), "b": np.int32(7), "c": np.bool_(True), "d": np.arange(2), "e": (1, np.nan)})
    assert value == {"a": 0.1, "b": 7, "c": True, "d": [0, 1], "e": [1, None]}
    assert [type(member) for member in value.values()] == [float, int, bool, list, list]


def test_text_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("old")
    replace_text(tmp_path / "page.html", "new ü")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"page.html": "new ü"}


def test_what_killed_writes_of_the_file_left_is_removed(tmp_path: Path) -> None:
    page = tmp_path / "[page].html"
    others = [".[page].html.backup.partial", ".p.html.7.partial", ".[page].htm.7.partial"]
    for name in (".[page].html.7.partial", ".[page].html.12345.partial", ".[page].html.99.partial", *others):
        (tmp_path / name).write_text("half")
    with locked(tmp_path / ".[page].html.99.partial"):  # as a process that still writes it does
        replace_text(page, "new")
    assert page.read_text() == "new"
    assert {each.name for each in tmp_path.iterdir()} == {page.name, ".[page].html.99.partial", *others}
    with replacing(page) as partial, pytest.raises(BlockingIOError), locked(partial):
        pass


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the partial file while a thread writes it."""
    has_begun, may_end = Event(), Event()

    def write(partial: Path) -> None:
        partial.write_text("whole")
        has_begun.set()
        assert may_end.wait(60)

    thread = Thread(target=replace_with, args=(path, write))
    thread.start()
    assert has_begun.wait(60)
    try:
        yield path.with_name(f".{path.name}.{os.getpid()}.partial")
    finally:
        may_end.set()
        thread.join()
    assert path.read_text() == "whole"


def test_text_that_cannot_be_written_leaves_the_old(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="must be writable, got No such file or directory"):
        replace_text(tmp_path / "nowhere" / "page.html", "new")


@pytest.mark.parametrize("content", ["{", "[1, 2]", ""])
def test_what_is_no_json_object_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(OutputError, match=r"x.json: "):
        read_json(tmp_path / "x.json")


def test_facts_survive_json() -> None:
    lives = [Life(0, 1)]
    pools = (pool_facts("a", 2), pool_facts("b", streamed=False))
    facts = run_facts(
        tables(lives, [Teller(lives)]), pools=pools, slo={"ttft_s": 0.1}, measure={"warmup_requests": 3}, notes=("n",)
    )
    assert facts_from_dict(json.loads(json_text(facts_to_dict(facts))), facts.wall_s) == facts
