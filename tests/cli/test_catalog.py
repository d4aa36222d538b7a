"""`simserve catalog`: what there is to choose from."""

import re

import pytest

from simserve.cli.catalog import KINDS
from tests.cli.invoke import invoke


def test_without_a_kind_every_kind_is_listed_with_its_names() -> None:
    lines = invoke("catalog").out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == list(KINDS)
    assert all(len(line.split()) > 1 for line in lines if not line.startswith(" "))
    assert max(map(len, lines)) < 120
    models = invoke("catalog", "models").out.split()
    listed = " ".join(lines).partition("families ")[0].removeprefix("models").replace(",", " ").split()
    assert listed == models


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_that_is_listed_can_be_shown(kind: str) -> None:
    names = invoke("catalog", kind).out.split()
    assert names
    for name in names:
        outcome = invoke("catalog", kind, name)
        assert outcome.exit_code == 0, outcome.err
        assert outcome.out.strip()


def test_a_gpu_is_shown_with_the_source_of_each_number() -> None:
    out = invoke("catalog", "gpus", "h100-sxm").out
    assert re.search(r"hbm_bytes_per_s +3\.35e\+12  # .*data sheet", out)


def test_a_family_is_shown_as_its_file_has_it_without_the_shared_keys() -> None:
    out = invoke("catalog", "families", "olmo3").out
    assert re.fullmatch(
        r"model_types +olmo3\nsource +transformers, \S+\ndefaults +\{sliding_window_pattern: 4\}\n", out
    )


def test_a_policy_is_shown_with_its_arguments_and_defaults() -> None:
    out = invoke("catalog", "schedulers", "chunked").out
    assert re.search(r"max_num_seqs +\S+ +default 256 +\w+", out)


def test_an_unknown_kind_is_2_and_the_kinds_are_told() -> None:
    outcome = invoke("catalog", "gpu")
    assert outcome.exit_code == 2
    assert outcome.out == ""
    assert "models, families, gpus, engines" in " ".join(outcome.err.split())


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [("gpus", "h100-sx", "h100-sxm"), ("families", "jamb", "jamba"), ("schedulers", "chunky", "chunked")],
)
def test_an_unknown_name_is_2_with_a_guess(kind: str, name: str, meant: str) -> None:
    outcome = invoke("catalog", kind, name)
    assert outcome.exit_code == 2
    assert meant in outcome.err
