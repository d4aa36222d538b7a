"""Looking up: by name, with a guess for a wrong one; engines with constants replaced."""

from pathlib import Path
from typing import Any

import pytest

from simserve import catalog
from simserve.catalog.load import is_listed
from simserve.errors import CatalogError


@pytest.mark.parametrize(
    ("written", "name"),
    [("H100-SXM", "h100-sxm"), ("h100_sxm", "h100-sxm"), ("H100 SXM", "h100-sxm"), ("h200", "h200-sxm"), ("L4", "l4")],
)
def test_a_card_is_found_as_people_write_it(written: str, name: str) -> None:
    assert catalog.gpu_name(written) == catalog.load_gpu(written).name == name


@pytest.mark.parametrize(
    ("load", "name", "message"),
    [
        (catalog.load_gpu, "h100-sxn", "no such GPU in the catalog, got 'h100-sxn'; did you mean h100-sxm?"),
        (catalog.load_gpu, "a100", "there are several in the catalog, got 'a100'; say which: a100-sxm, a100-sxm-40gb"),
        (catalog.load_gpu, "h101-sxm", "got 'h101-sxm'; choose from h100-pcie, h100-sxm, h20-sxm, h200-sxm, h800-sxm"),
        (catalog.load_model, "Qwen2.5-33B", "got 'Qwen2.5-33B'; choose from qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-14b"),
        (catalog.load_engine, "vlm", "no such engine in the catalog, got 'vlm'; did you mean vllm?"),
        (catalog.load_model, "lama-3.1-8b", "or the path of a config.json, got 'lama-3.1-8b'; did you mean llama-3.1-"),
        (
            catalog.load_model,
            "meta-llama/Llama-3.1-8C",
            "Llama-3.1-8C'; give the path of its config.json, or",
        ),
        (catalog.load_model, "meta-llama/Llama-3.1-8C", "or did you mean llama-3.1-8b?"),
        (
            catalog.load_model,
            "models/llama-3.1-8b/config.json",
            "there is no such file, got 'models/llama-3.1-8b/config",
        ),
        (catalog.load_gpu, "../models/qwen3-8b", "no such GPU"),
        (catalog.names, "gpu", "no such kind in the catalog, got 'gpu'; did you mean gpus?"),
    ],
)
def test_an_unknown_name_gets_a_did_you_mean(load: Any, name: str, message: str) -> None:
    with pytest.raises(CatalogError) as caught:
        load(name)
    assert message in str(caught.value)


def test_a_name_like_nothing_gets_the_list() -> None:
    with pytest.raises(CatalogError, match="choose from ideal, sglang, trtllm, vllm"):
        catalog.load_engine("???")


def test_constants_replace_an_engines_and_say_so() -> None:
    engine = catalog.load_engine("vllm", launch_s=0.0, memory_efficiency=0.9)
    assert (engine.launch_s, engine.memory_efficiency, engine.compute_efficiency) == (0.0, 0.9, 0.81)
    assert engine.sources["launch_s"] == "given by the scenario"
    assert engine.sources["compute_efficiency"].startswith("assumed")
    assert catalog.load_engine("vllm").launch_s == 3.8e-6  # the catalog itself is as it was


def test_an_unknown_constant_is_refused() -> None:
    with pytest.raises(CatalogError, match="no such constant of an engine, got 'lunch_s'; did you mean launch_s"):
        catalog.load_engine("vllm", lunch_s=0.0)


def test_lists_of_names_are_the_callers_own() -> None:
    catalog.names("gpus").clear()
    assert catalog.names("gpus")


def test_describing_refuses_what_there_is_not() -> None:
    with pytest.raises(CatalogError, match="no such kind"):
        catalog.describe("schedulers", "chunked")
    with pytest.raises(CatalogError, match="did you mean l40s"):
        catalog.describe("gpus", "l40")


def test_a_folder_stands_for_the_config_json_in_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CatalogError, match=r"config\.json: must be a JSON object, got list"):
        catalog.load_model(str(tmp_path))


def test_a_version_brings_what_has_changed_up_to_it() -> None:
    oldest, default = catalog.load_engine("vllm", version="0.12"), catalog.load_engine("vllm")
    assert default == catalog.load_engine("vllm", version="0.19")
    assert (default.version, default.constants_of, default.fitted_to, oldest.fitted_to) == (
        "0.19",
        "0.19",
        "0.12",
        "0.12",
    )
    assert not catalog.load_engine("vllm", version="0.13.2").async_scheduling
    newer = catalog.load_engine("vllm", version="0.24", fitted={"step_host_s": 5.0, "gap_s": 7.0})
    assert newer.async_scheduling
    assert oldest.logit_bytes > default.logit_bytes > newer.logit_bytes
    assert (newer.step_host_s, newer.gap_s) == (5.0, 7.0)
    versions = {"0.2": "0.12", "0.12.3": "0.12", "0.16": "0.15", "0.19.1": "0.19", "1.0": "0.20"}
    assert {each: catalog.load_engine("vllm", version=each).constants_of for each in versions} == versions
    assert newer.sources["gap_s"].startswith("fitted")
    assert catalog.load_engine("vllm", version="0.24", step_host_s=9.0).step_host_s == 9.0
    with pytest.raises(
        CatalogError, match=r"a version of vllm must begin with two numbers, got 'latest'; the catalog has 0\.12, 0\.14"
    ):
        catalog.load_engine("vllm", version="latest")


def test_one_gpu_needs_no_messages_to_others_unless_a_scenario_says_more() -> None:
    fit = {"step_host_s": 5.0, "request_host_s": 7.0}
    several = catalog.load_engine("vllm", version="0.12", fitted=fit, n_gpus=2)
    one = catalog.load_engine("vllm", version="0.12", fitted=fit, n_gpus=1)
    assert several.request_host_s == 7.0
    assert (one.step_host_s, one.request_host_s) == (5.0, 15e-6)
    assert "own process" in one.sources["request_host_s"]
    assert catalog.load_engine("vllm", fitted=fit, n_gpus=1, request_host_s=9.0).request_host_s == 9.0
    assert catalog.load_engine("sglang", fitted=fit, n_gpus=1).request_host_s == 7.0


def test_a_patch_release_may_change_constants() -> None:
    versions = ("0.5", "0.5.9", "0.5.9.post1", "0.5.10", "0.5.12", "0.6")
    rules = [catalog.load_engine("sglang", version=version).kept_free_mib or {} for version in versions]
    assert ["piecewise" in rule for rule in rules] == [False, False, False, True, True, True]
    assert is_listed(catalog.load_engine("sglang", version="0.5.14"))
    assert not is_listed(catalog.load_engine("sglang", version="0.6"))
