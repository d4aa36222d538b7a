"""Plug-ins: the file name is the policy's name, and the class's fields are its arguments."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from simserve import plugins
from simserve.cost.model import CostModel
from simserve.engine.replica_setup import ReplicaSetup
from simserve.errors import PolicyError
from simserve.schedulers.base import Scheduler
from simserve.schedulers.chunked import Chunked
from simserve.schedulers.continuous import Continuous
from simserve.schedulers.dynamic import Dynamic
from tests.doubles import plain_blocks

OWN_MODULE = '''
"""A user's own policies."""
from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from simserve.schedulers.base import STRICT, Scheduler


@dataclass(config=STRICT)
class Patient(Scheduler):
    """Waits."""

    n_waits: PositiveInt = 2
    """How often."""

    def __post_init__(self):
        if self.n_waits == 13:
            raise ValueError("13 is bad luck")


class Bare(Scheduler):
    pass


class Broken(Scheduler):
    def __init__(self):
        raise RuntimeError("no battery")


class Unrelated:
    pass


class OldFlag(Scheduler):
    follows = True


class OldLimit(Scheduler):
    @property
    def seats(self):
        return 8
'''


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Write a module into the current directory, which is not on the import path."""
    name = "policies_of_mine"
    (tmp_path / f"{name}.py").write_text(OWN_MODULE)
    (tmp_path / "torn_policies.py").write_text("import")
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


def sentence(family: str, spec: object) -> str:
    """Return the error message of a plug-in that cannot be built."""
    with pytest.raises(PolicyError) as caught:
        plugins.build(family, spec)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_bare_name_builds_the_class_of_that_file_with_its_defaults() -> None:
    assert plugins.build("schedulers", "chunked") == Chunked()


def test_arguments_are_the_fields_of_the_class() -> None:
    built = plugins.build("schedulers", {"kind": "dynamic", "batch_size": 4, "window_s": 1})
    assert built == Dynamic(batch_size=4, window_s=1.0)


def test_two_plugins_built_from_one_spec_share_nothing() -> None:
    assert plugins.build("routers", "round_robin") is not plugins.build("routers", "round_robin")


def test_a_whole_number_in_exponent_form_is_a_whole_number() -> None:
    assert plugins.build("schedulers", {"kind": "chunked", "max_num_seqs": 1e2}).max_num_seqs == 100


def test_the_names_of_a_family_are_its_files() -> None:
    assert set(plugins.names("routers")) >= {"round_robin", "random", "least_outstanding", "least_kv", "power_of_two"}
    assert set(plugins.names("schedulers")) >= {"static", "dynamic", "continuous", "prefill_first", "chunked"}
    assert "base" not in plugins.names("schedulers")


def test_spelling_out_gives_every_argument() -> None:
    assert plugins.spelled_out(Dynamic(batch_size=4)) == {"batch_size": 4, "window_s": 0.1, "stream": False}


@pytest.mark.parametrize("name", ["chunkd", "Chunked", "chunked_"])
def test_an_unknown_name_gets_a_did_you_mean(name: str) -> None:
    assert f"unknown scheduler, got '{name}'; did you mean chunked?" in sentence("schedulers", name)


def test_a_name_like_no_other_gets_the_list() -> None:
    known = "least_kv, least_outstanding, power_of_two, prefix_affinity, random, round_robin"
    assert f"choose from {known}" in sentence("routers", "zzz")


@pytest.mark.parametrize("name", ["base", "../chunked", "__init__", "", "chunked.x"])
def test_names_that_are_no_policies_are_unknown(name: str) -> None:
    assert "unknown scheduler" in sentence("schedulers", name)


def test_an_unknown_argument_gets_a_did_you_mean() -> None:
    message = sentence("schedulers", {"kind": "chunked", "max_num_seq": 3})
    assert message == "scheduler chunked: max_num_seq: unknown argument; did you mean max_num_seqs?"


def test_a_policy_without_arguments_says_that_it_takes_none() -> None:
    assert "RoundRobin takes no arguments" in sentence("routers", {"kind": "round_robin", "seed": 1})


def test_all_wrong_arguments_are_told_at_once() -> None:
    message = sentence("schedulers", {"kind": "dynamic", "batch_size": 0, "window_s": -1, "steam": True})
    assert message.splitlines() == [
        "scheduler dynamic: steam: unknown argument; did you mean stream?",
        "scheduler dynamic: batch_size: must be more than 0, got 0",
        "scheduler dynamic: window_s: must be at least 0, got -1",
    ]


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("8", "must be a whole number, got '8'; write 8, without quotes or underscores"),
        ("8_192", "must be a whole number, got '8_192'; write 8192, without quotes or underscores"),
        (True, "must be a whole number, got true"),
        (1.5, "must be a whole number, got 1.5"),
        (None, "must be a whole number, got nothing"),
        ([1], "must be a whole number, got [1]"),
        ({"a": 1}, "must be a whole number, got a mapping"),
        (math.nan, "must be a finite number, got NaN"),
        (-math.inf, "must be a finite number, got -infinity"),
    ],
)
def test_a_wrong_type_is_said_in_plain_words(value: object, rule: str) -> None:
    assert sentence("schedulers", {"kind": "static", "batch_size": value}) == f"scheduler static: batch_size: {rule}"


def test_a_spec_without_a_kind_is_wrong() -> None:
    assert sentence("schedulers", {"batch_size": 3}) == "scheduler : kind: is missing; name the scheduler"


def test_a_kind_that_is_no_text_is_wrong() -> None:
    assert "kind: must be text, got 3" in sentence("schedulers", {"kind": 3})


def test_a_policy_from_outside_the_tree_is_found_in_the_current_directory(own_module: str) -> None:
    path_before = list(sys.path)
    built = plugins.build("schedulers", {"kind": f"{own_module}:Patient", "n_waits": 5})
    assert built.n_waits == 5
    assert sys.path == path_before


def test_a_policy_from_outside_has_its_arguments_checked_too(own_module: str) -> None:
    message = sentence("schedulers", {"kind": f"{own_module}:Patient", "n_wait": 0})
    assert "n_wait: unknown argument; did you mean n_waits?" in message


def test_what_a_policy_itself_finds_wrong_is_told_in_its_words(own_module: str) -> None:
    assert sentence("schedulers", {"kind": f"{own_module}:Patient", "n_waits": 13}).endswith("13 is bad luck")


def test_a_policy_without_fields_needs_no_dataclass(own_module: str) -> None:
    assert type(plugins.build("schedulers", f"{own_module}:Bare")).__name__ == "Bare"
    message = sentence("schedulers", {"kind": f"{own_module}:Bare", "n": 1})
    assert "make Bare a pydantic dataclass" in message


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("policies_of_mine:Patent", "has no class Patent, got 'policies_of_mine:Patent'; did you mean Patient?"),
        ("policies_of_mine:Unrelated", "must be a kind of simserve.schedulers.base.Scheduler"),
        ("policies_of_mine:Broken", "Broken raised RuntimeError: no battery"),
        ("torn_policies:Any", "the module torn_policies cannot be imported (SyntaxError"),
        ("no_such_module:Any", "cannot be imported (ModuleNotFoundError: No module named 'no_such_module')"),
        (":Any", "cannot be imported"),
        ("policies_of_mine:OldFlag", "OldFlag.follows must have its new name is_stateful, got follows; rename it"),
        ("policies_of_mine:OldLimit", "OldLimit.seats must have its new name max_running, got seats; rename it"),
        ("json:dumps", "the module json has no class dumps"),
    ],
)
def test_a_policy_from_outside_that_is_no_use_is_told_why(own_module: str, name: str, rule: str) -> None:
    assert rule in sentence("schedulers", name)


def test_describing_a_policy_gives_its_text_and_its_arguments() -> None:
    described = plugins.describe("schedulers", "chunked")
    assert described.text.startswith("Every step decodes all running requests")
    budget = described.arguments[0]
    assert (budget.name, budget.type, budget.default) == ("max_num_batched_tokens", "PositiveInt", 2048)
    assert budget.meaning == "[tokens] Budget of a step, decode tokens included (vLLM `--max-num-batched-tokens`)."
    assert not budget.is_required


def test_describing_an_unknown_policy_gets_a_did_you_mean() -> None:
    with pytest.raises(PolicyError, match="did you mean power_of_two"):
        plugins.describe("routers", "power_of_too")


def test_an_item_that_is_missing_from_a_list_is_told_by_its_index() -> None:
    message = sentence("workload.lengths", {"kind": "uniform", "prompt_tokens": [1], "output_tokens": [1, 2]})
    assert message == "length distribution uniform: prompt_tokens.1: is missing"


def test_only_an_argument_that_says_so_may_be_infinite() -> None:
    assert plugins.build("workload.arrivals", {"kind": "vllm_bench", "rate_per_s": math.inf}).rate_per_s == math.inf
    assert "must be a finite number, got NaN" in sentence(
        "workload.arrivals", {"kind": "vllm_bench", "rate_per_s": math.nan}
    )
    assert "must be a finite number, got infinity" in sentence(
        "workload.arrivals", {"kind": "poisson", "rate_per_s": math.inf}
    )


def test_a_wrong_key_inside_an_argument_gets_a_did_you_mean() -> None:
    side = {"median": 512, "sigma": 0.6, "max": 8192}
    spec = {"kind": "lognormal", "prompt_tokens": {**side, "sigm": 1}, "output_tokens": side}
    message = sentence("workload.lengths", spec)
    assert message == "length distribution lognormal: prompt_tokens.sigm: unknown key; did you mean sigma?"


class Counting(Continuous):
    """Keeps state that it does not declare."""


def test_replicas_share_a_policy_only_where_it_surely_keeps_no_state() -> None:
    def n_policies(policy: Scheduler) -> int:
        setup = ReplicaSetup(policy, cast(CostModel, None), n_blocks=1, layers=plain_blocks(1), max_model_len=1)
        return len({id(each.scheduler) for each in setup.copies(3)})

    assert n_policies(Chunked()) == 1
    assert n_policies(Chunked(policy="vtc")) == 3
    assert n_policies(Counting()) == 3
