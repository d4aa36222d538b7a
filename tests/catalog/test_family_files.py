"""Files of families: what is wrong with one is told by its place, and one beside a config.json is used."""

import json
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
import yaml

from simserve import catalog
from simserve.catalog.families import families, family_data, read_family
from simserve.catalog.family import Mixer
from simserve.catalog.layers import LayerGroup
from simserve.catalog.states import StateLayers
from simserve.cost.shard import Shard
from simserve.cost.weights import parameters
from simserve.errors import CatalogError
from tests.fuzz.configs import COMMON, LLAMA, config_of
from tests.fuzz.configs import KEYS as FAMILIES
from tests.fuzz.mutants import mutant, typed

STATE = {"mixer": "mamba2", "sizes": {"n_heads": "a", "head_dim": "b", "state_dim": "c", "n_groups": "d"}}
MIXERS = get_args(Mixer)
DELTA_NET = ("n_key_heads", "key_head_dim", "n_value_heads", "conv_size")
SIZES = "conv_size, head_dim, n_groups, n_heads, state_dim"

WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"layers": [{"by": "period", "value": 2, "kind": "spiral"}]},
        f"layers.0.kind: must be one of {', '.join(MIXERS[:-1])} or {MIXERS[-1]} or one of dense or experts, "
        "got 'spiral'",
    ),
    (
        {"state": {**STATE, "mixer": "rwkv"}},
        "state.mixer: must be one of gated_delta_net, kda, lightning, mamba, mamba2 or short_convolution, got 'rwkv'",
    ),
    (
        {"layers": [{"by": "period", "value": 2, "kind": "experts", "others": "full"}]},
        f"layers: must have kinds of {', '.join(MIXERS)}, got experts",
    ),
    (
        {"layers": [{"by": "period", "value": 1, "kind": "state_alone"}]},
        "state is missing; layers of kind state need its mixer and sizes",
    ),
    ({"state": STATE}, f"state.sizes: conv_size has no key; give one for each of {SIZES}"),
    (
        {"state": {**STATE, "sizes": {**STATE["sizes"], "conv_size": "e", "gate": "f"}}},  # type: ignore[dict-item]
        f"state.sizes: gate is no size of it; give one for each of {SIZES}",
    ),
    (
        {"reads": {"width": "gate_size"}, "ignores": "gate_size"},
        "ignores: there must be one rule for a key, got gate_size, which reads.width has; delete one",
    ),
    (
        {"reads": {"width": "hidden_size"}},
        "reads.width: there must be one rule for a key, got hidden_size, which shared_keys.yaml has; delete one",
    ),
    ({"names": {"num_wheels": "wheels"}}, "names: must be a key that is read, got num_wheels; give its type in reads"),
    (
        {"layers": [{"by": "list", "key": "kinds", "kinds": {"a": "full"}}]},
        "layers: must be a key that is read, got kinds; give its type in reads",
    ),
    ({"reads": {"length": "wheels"}}, "reads: must be by type, got length; choose from count, count_or_0, width,"),
    (
        {
            "derived": {
                "head_dim": {"times": ["hidden_size"], "over": "num_attention_heads"},
                "num_attention_heads": {"times": ["hidden_size"], "over": "head_dim"},
            }
        },
        "derived: values must not need themselves, got head_dim needs num_attention_heads needs head_dim; "
        "give one of them a number",
    ),
    ({"layer": []}, "layer: unknown key; did you mean layers?"),
    ({"source": ""}, "source: must not be empty, got ''"),
    (
        {"derived": {"head_dim": {"times": ["hidden_size"], "over": 0}}},
        "derived.head_dim.over: must be text or at least 1",
    ),
    ({"derived": {"head_dim": {"times": ["hidden_size", -1]}}}, "derived.head_dim.times.1: must be text or at least 1"),
    ({"derived": {"head_dim": {"times": []}}}, "derived.head_dim.times: must have at least 1 items, got []"),
    (
        {"derived": {"head_dim": {"times": ["model_type"]}}},
        "derived: must be a key of type width, width_or_0, width_or_auto, parts, parts_or_0, count, count_or_0, "
        "number, ratio, got model_type of text",
    ),
    ({"defaults": {"head_dim": 1.5}}, "defaults.head_dim: must be a whole number, got 1.5"),
    ({"defaults": {"head_dim": True}}, "defaults.head_dim: must be a whole number, got true"),
    ({"defaults": {"sliding_window": -5}}, "defaults.sliding_window: must be at least 0, got -5"),
    ({"layers": [{"by": "period", "kind": "full", "others": "full"}]}, "layers.0: must have a key or a value"),
    (
        {"layers": [{"by": "period", "value": 0, "kind": "full", "others": "full"}]},
        "layers.0: value must be at least 1",
    ),
    (
        {"layers": [{"by": "period", "key": "decoder_sparse_step", "kind": "full"}]},
        "layers.0: must say the kind of the layers and of others",
    ),
    (
        {"layers": [{"by": "letters", "key": "model_type", "kinds": {"M": "full"}}]},
        "layers.0: kinds must have a letter for each mixer and each MLP",
    ),
    (
        {"layers": [{"by": "numbers", "key": "hidden_size", "kind": "full", "others": "full"}]},
        "layers: must be a key of type layers, numbers, got hidden_size of width",
    ),
    (
        {"layers": [{"by": "period", "key": "use_sliding_window", "kind": "full", "others": "full"}]},
        "layers: must be a key of type count, period, frequency, got use_sliding_window of flag",
    ),
    (
        {"layers": [{"by": "since", "value": 1, "kind": "windowed"}]},
        "layers.0: must say the kind of the layers and of others",
    ),
    (
        {"names": {"first_k_dense_replace": "model_type"}},
        "names: must be a key of type count, count_or_0, got model_type of text",
    ),
    (
        {"state": {"mixer": "gated_delta_net", "sizes": dict.fromkeys(DELTA_NET, "a")}},
        "state.sizes: value_head_dim has no key; give one for each of conv_size, key_head_dim, n_key_heads",
    ),
    (
        {"windows": {"n_heads": "model_type", "n_kv_heads": "a", "head_dim": "b"}},
        "windows: must be a key of type width, width_or_0, width_or_auto, parts, parts_or_0, count, count_or_0, "
        "got model_type of text",
    ),
    (
        {"state": {"mixer": "lightning", "sizes": {"n_heads": "a", "head_dim": "b"}, "dtype": "model_type"}},
        "state.dtype: must be a key of type dtype, got model_type of text",
    ),
]


@pytest.mark.parametrize(("data", "text"), WRONG, ids=[next(iter(data)) for data, _ in WRONG])
def test_what_is_wrong_with_a_file_is_told_by_its_place(data: dict[str, Any], text: str) -> None:
    with pytest.raises(CatalogError) as caught:
        read_family({"source": "a paper", **data})
    assert str(caught.value).startswith(text), str(caught.value)


def write(folder: Path, family: str, **keys: Any) -> str:
    """Write a config.json of a new family with its file beside it."""
    (folder / "family.yaml").write_text(family)
    (folder / "config.json").write_text(json.dumps({**LLAMA, **COMMON, "model_type": "new_hybrid", **keys}))
    return str(folder / "config.json")


FAMILY = """
source: "a paper"
reads: {count: attention_every, width: ssm_inner}
ignores: ssm_bias
derived: {ssm_heads: {times: [ssm_inner], over: ssm_head_dim}}
layers:
  - {by: period, key: attention_every, value: 4, kind: full, others: state}
state:
  mixer: mamba2
  sizes: {n_heads: ssm_heads, head_dim: ssm_head_dim, state_dim: ssm_state, n_groups: ssm_groups, conv_size: ssm_conv}
"""
KEYS = {"ssm_inner": 8192, "ssm_head_dim": 64, "ssm_state": 128, "ssm_groups": 8, "ssm_conv": 4, "ssm_bias": True}


def test_a_family_of_known_layers_is_one_file_beside_the_config(tmp_path: Path) -> None:
    model = catalog.load_model(write(tmp_path, FAMILY, **KEYS))
    assert model.groups == (LayerGroup("state", 24), LayerGroup("full", 8))
    assert model.linear == StateLayers.of("mamba2", n_heads=128, head_dim=64, state_dim=128, n_groups=8, conv_size=4)


def test_sizes_that_do_not_divide_are_named_with_what_they_divide(tmp_path: Path) -> None:
    for keys, text in (
        ({"ssm_head_dim": 96}, "ssm_head_dim must divide ssm_inner, 8192, got 96"),
        ({"ssm_groups": 3}, "ssm_groups must divide ssm_heads 128, got 3"),
        ({"ssm_inner": None}, "ssm_inner is missing; ssm_heads follows from ssm_inner and ssm_head_dim"),
        ({"ssm_rank": 8}, "keys of model_type new_hybrid .* got ssm_rank: 8"),
    ):
        with pytest.raises(CatalogError, match=f"config.json: {text}"):
            catalog.load_model(write(tmp_path, FAMILY, **{**KEYS, **keys}))


def test_a_value_that_follows_has_the_range_of_its_key(tmp_path: Path) -> None:
    for derived, text in (
        ("times: [hidden_size, hidden_size]", "head_dim: must be at most 1048576, got 16777216"),
        ("times: [hidden_size], over: 7", "7 must divide hidden_size, got 4096"),
    ):
        with pytest.raises(CatalogError, match=f"config.json: {text}"):
            catalog.load_model(write(tmp_path, f"source: a paper\nderived: {{head_dim: {{{derived}}}}}"))


def test_what_says_which_layers_have_a_state_or_a_window_must_be_there(tmp_path: Path) -> None:
    unlisted = FAMILY.replace(", value: 4", "")
    with pytest.raises(CatalogError, match="layer_types or attention_every is missing; it says which layers"):
        catalog.load_model(write(tmp_path, unlisted, **KEYS))
    listed = "source: x\nreads: {by_layer: pattern}\nlayers: [{by: list, key: pattern, kinds: {0: full, 1: windowed}}]"
    with pytest.raises(CatalogError, match="pattern names layers of 1, but sliding_window is missing"):
        catalog.load_model(write(tmp_path, listed, pattern=[0, 1] * 16))


def test_layers_behind_the_last_whole_period_may_be_of_its_kind(tmp_path: Path) -> None:
    whole = FAMILY.replace("value: 4", "value: 5, only_whole: true")
    model = catalog.load_model(write(tmp_path, whole, **KEYS))  # 32 layers: 6 periods of 5, and 2 more
    assert model.groups == (LayerGroup("state", 24), LayerGroup("full", 8))


def test_a_family_file_that_is_wrong_is_told_by_its_name(tmp_path: Path) -> None:
    for family, text in (
        ("source: [", "cannot be read"),
        ("- 3", "must be a mapping, got"),
        ("source: a paper\nmixer: x", "mixer: unknown key"),
        ("", "must be a mapping, got nothing"),
        ("[" * 5000, "cannot be read"),
        (
            "source: a paper\ndefaults: {head_dim: 64, head_dim: 128}",
            "cannot be read .head_dim is given twice in .* line 2",
        ),
        ("x" * 2**21, "cannot be read .* is larger than 1 MiB"),
        ("derived: &a {head_dim: *a}", "source: is missing"),
        ("source: \0", "cannot be read"),
    ):
        with pytest.raises(CatalogError, match=f"family.yaml: {text}"):
            catalog.load_model(write(tmp_path, family))


def test_every_file_of_the_catalog_names_its_source() -> None:
    assert all(family.source for family in families().values())


def test_an_activation_that_does_not_say_whether_there_is_a_gate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "model_type": "brand_new", "hidden_act": "relu2"}))
    with pytest.raises(CatalogError, match='hidden_act: families of "relu2" differ in whether their MLP has a gate'):
        catalog.load_model(str(tmp_path / "config.json"))
    gated = write(tmp_path, "source: a paper\nmodel_types: brand_new\nhas: {gated_mlp: false}", hidden_act="relu2")
    assert not catalog.load_model(gated).gated_mlp


def test_a_family_of_common_keys_has_no_file() -> None:
    with pytest.raises(CatalogError, match="which models of common keys such as llama do not need, got 'llama'"):
        catalog.describe("families", "llama")


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() & families().keys()))
def test_any_fault_in_a_file_is_an_error_by_its_name(tmp_path: Path, name: str) -> None:
    random, file = Random(name), tmp_path / "family.yaml"
    (tmp_path / "config.json").write_text(json.dumps(config_of(name)))
    for _ in range(20):
        data = random.choice((mutant, typed))(dict(family_data(name)), random)
        file.write_text(yaml.safe_dump(data), encoding="utf-8")
        try:
            model = catalog.load_model(str(tmp_path))
        except CatalogError as error:
            assert str(error).startswith((f"{file}: ", f"{tmp_path / 'config.json'}: ")), str(error)
        else:
            assert 0 < sum(vars(parameters(Shard(model))).values()) < 10**18
