"""What a run says of how its costs came about."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from simserve import catalog
from simserve.scenario import Scenario
from simserve.scenario.cost_warnings import notes as all_notes
from simserve.scenario.cost_warnings import warnings
from simserve.scenario.setup import PoolSetup

Load = Callable[..., Scenario]
POOL = "cluster.pools.0"


def notes(setups: tuple[PoolSetup, ...]) -> tuple[str, ...]:
    """Return the notes without that on prediction intervals, which `test_server_errors` is about."""
    return tuple(note for note in all_notes(setups) if "prediction intervals allow" not in note)


def test_timed_kernels_on_one_gpu_need_no_caveat(load: Load, small: str) -> None:
    setups = load().setups
    assert (notes(setups), warnings(setups)) == ((), ())


def test_a_scaled_card_that_borrows_experts_says_both(load: Load, small: str) -> None:
    result = warnings(
        load(
            small,
            "gpu=a100-sxm-40gb",
            "model=deepseek-v3",
            "weight_dtype=int4",
            f"{POOL}.parallel={{tensor: 8, pipeline: 2}}",
        ).setups
    )
    assert len(result) == 2
    assert "scaled by the data sheets from kernels timed on a100-sxm under vllm" in result[0]
    assert result[1].startswith(
        "the times of latent attention of deepseek-v3 are scaled by the data sheet from another"
    )


def test_layers_with_a_state_that_was_not_timed_are_said_to_be_a_roofline(load: Load, small: str) -> None:
    (setup,) = load(small, "gpu=h200-sxm").setups
    (note,) = notes((replace(setup, model=catalog.load_model("nemotron-h-56b")),))
    assert note.startswith("the 54 layers of nemotron-h-56b with a state were not timed: a roofline of their bytes")
    timed = replace(setup, model=catalog.load_model("qwen3-next-80b-a3b"))
    assert notes((timed,)) == ()
    (note,) = notes((replace(timed, calibration=None),))
    assert note.startswith("the 36 layers of qwen3-next-80b-a3b")


@pytest.mark.parametrize(
    ("version", "constants_of"),
    [("0.12.1", None), ("0.19", None), ("0.16.0", "0.15"), ("0.2", "0.12"), ("1.0", "0.20")],
)
def test_a_version_that_the_catalog_lacks_has_the_constants_of_the_nearest(
    load: Load, small: str, version: str, constants_of: str | None
) -> None:
    result = notes(load(small, f"engine={{name: vllm, version: '{version}'}}").setups)
    known = "the catalog, which has 0.12, 0.14, 0.15, 0.17, 0.19, 0.20"
    rule = f"engine vllm {version} is not in {known}: host times, memory and scheduler are those of {constants_of}"
    assert [note.startswith(rule) for note in result if "catalog" in note] == [True] * (constants_of is not None)


@pytest.mark.parametrize(("requested", "is_said"), [("0.24", False), ("0.24.0", False), ("0.12", True), ("0.2", True)])
def test_a_version_whose_kernels_nobody_timed_is_said(load: Load, small: str, requested: str, is_said: bool) -> None:
    result = notes(load(small, f"engine={{name: vllm, version: '{requested}'}}").setups)
    assert any(f"engine vllm {requested}: kernel costs are those of vllm 0.24.0" in note for note in result) == is_said


STAGES = "the cost of pipeline stages is that of their kernels and links, and was not validated against a server"
RANKS = (
    "published servers with data-parallel ranks that share experts took 0.7 to 2.3 times the predicted time per token"
)


@pytest.mark.parametrize(
    ("parallel", "note"),
    [
        ("{pipeline: 2}", STAGES),
        ("{data: 2, expert: 2}", RANKS),
        ("{data: 2, pipeline: 2}", f"{STAGES}; {RANKS}"),
    ],
)
def test_how_far_servers_with_stages_or_ranks_are_off_is_said(load: Load, small: str, parallel: str, note: str) -> None:
    setups = load(small, "model=qwen3-30b-a3b", f"{POOL}.parallel={parallel}").setups
    assert notes(setups) == (note,)
    others = (*load(small).setups, *(replace(setups[0], name=name) for name in ("a", "b")))
    assert notes(others) == (f"pools a and b: {note}",)
    assert notes(others[:2]) == (f"pool a: {note}",)


def test_data_parallel_ranks_of_a_dense_model_are_plain_replicas(load: Load, small: str) -> None:
    assert notes(load(small, f"{POOL}.parallel={{data: 2}}").setups) == ()


def test_a_dtype_that_nobody_timed_says_whose_kernels_it_is_taken_for(load: Load, small: str) -> None:
    assumed = "w8a8 was not timed: its kernels are assumed to reach the same share of peak as those of {}"
    assert notes(load(small, "weight_dtype=w8a8").setups) == (assumed.format("fp8"),)
    assert notes(load(small, "weight_dtype=w8a8", "gpu=a100-sxm").setups) == (assumed.format("bf16"),)
    assert notes(load(small, "weight_dtype=int8").setups) == ()


@pytest.mark.parametrize(
    ("model", "kind", "said"),
    [
        ("llama-3.1-8b", "ngram", "this kind of speculation was not validated against a server"),
        ("deepseek-v3", "mtp", "compared with servers only given the tokens per step that they reached"),
    ],
)
def test_what_is_known_of_speculation_is_said(load: Load, small: str, model: str, kind: str, said: str) -> None:
    speculation = f"{POOL}.speculation={{kind: {kind}, tokens: 1, acceptance: 0.7}}"
    setups = load(small, f"model={model}", f"{POOL}.parallel={{tensor: 8}}", "gpu=h200-sxm", speculation).setups
    (note,) = (each for each in notes(setups) if "acceptance rate" in each)
    assert note.startswith("the acceptance rate is an assumption of the scenario, and ")
    assert said in note
