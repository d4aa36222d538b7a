"""A card of one's own: read from a YAML file, checked number by number, and scaled from another."""

from pathlib import Path

import pytest
import yaml

from simserve import catalog
from simserve.scenario.cards import load_gpu
from simserve.scenario.cost_warnings import warnings
from tests.cli.invoke import invoke
from tests.scenario.conftest import Load, MessagesOf

CARD = """\
flop_per_s: {bf16: 9.0e14, fp8: 1.8e15}
memory_mib: 81559
hbm_bytes_per_s: 3.0e12
link_bytes_per_s: 4.0e11
nic_bytes_per_s: 5.0e10
pcie_bytes_per_s: 6.4e10
n_sms: 132
l2_bytes: 5.0e7
tdp_w: 700
price_per_hour_usd: 2.5
kernels_like: l40s
"""


def write(folder: Path, text: str = CARD, name: str = "my_gpu.yaml") -> str:
    (folder / name).write_text(text)
    return name


def test_a_scenario_runs_on_a_card_of_its_own(load: Load, small: str, tmp_path: Path) -> None:
    scenario = load(small, f"gpu={write(tmp_path)}")
    (setup,) = scenario.setups
    card = setup.gpu
    assert (card.name, card.hbm_bytes, card.n_sms) == ("my_gpu", 81559 * 2**20, 132)
    assert card.flop_per_s == {"bf16": 9e14, "fp16": 9e14, "fp8": 1.8e15}
    assert (card.gpus_per_node, card.link_latency_s) == (8, 5e-6)
    assert setup.calibration is not None and setup.calibration.gpu == "l40s"
    assert "step costs of my_gpu under vllm are uncalibrated: scaled by the data sheets" in warnings((setup,))[0]
    assert scenario.gpu == str(tmp_path / "my_gpu.yaml")
    again = load(scenario.to_yaml())
    assert (again, again.digest) == (scenario, scenario.digest)


def test_the_digest_follows_the_cards_content_and_not_its_folder(load: Load, small: str, tmp_path: Path) -> None:
    digests = []
    for folder, text in (("a", CARD), ("b", CARD), ("c", CARD.replace("132", "131"))):
        (tmp_path / folder).mkdir()
        digests.append(load(small, f"gpu={folder}/{write(tmp_path / folder, text)}").digest)
        write(tmp_path / folder, text)
    assert digests[0] == digests[1] != digests[2]


def test_a_card_of_the_catalog_written_down_is_that_card(tmp_path: Path) -> None:
    for name in catalog.names("gpus"):
        shown = catalog.load_gpu(name)
        data = {**vars(shown), "memory_mib": shown.hbm_bytes / 2**20, "sources": dict(shown.sources)}
        data = {key: value for key, value in data.items() if key not in ("name", "hbm_bytes") and value is not None}
        file = tmp_path / f"my-{name}.yaml"
        file.write_text(yaml.safe_dump({**data, "flop_per_s": dict(shown.flop_per_s)}))
        assert vars(load_gpu(str(file))) == {**vars(shown), "name": f"my-{name}"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("n_sms: 132", "n_sms: 0", "my_gpu.yaml:7: n_sms: must be at least 1, got 0; data sheets have it"),
        ("3.0e12", "3.0e18", "my_gpu.yaml:3: hbm_bytes_per_s: must be at most 100000000000000, got 3e+18; data sheets"),
        ("3.0e12", ".inf", "my_gpu.yaml:3: hbm_bytes_per_s: must be a finite number, got infinity"),
        ("tdp_w: 700\n", "", "my_gpu.yaml: tdp_w: is missing; data sheets have it"),
        ("l2_bytes", "l2_byte", "my_gpu.yaml:8: l2_byte: unknown key; did you mean l2_bytes? (and 1 more)"),
        ("fp8:", "fp6:", "my_gpu.yaml:1: flop_per_s.fp6: unknown key; did you mean fp"),
        ("9.0e14", "fast", "my_gpu.yaml:1: flop_per_s.bf16: must be a number, got 'fast'"),
        (
            "like: l40s",
            "like: l40",
            "my_gpu.yaml:11: kernels_like: no such GPU in the catalog, got 'l40'; did you mean l4",
        ),
        ("tdp_w: 700", "tdp_w: 700\ntdp_w: 7", "my_gpu.yaml:10: tdp_w: is given twice, first on line 9; keep one of"),
        (CARD, "- 1\n", "my_gpu.yaml: must be a mapping of a card's numbers; data sheets have it"),
        (CARD, "{", "my_gpu.yaml:2: is not YAML"),
        (CARD, "[" * 99, "must have at most 50 levels"),
    ],
)
def test_an_impossible_card_says_where_and_why(
    messages_of: MessagesOf, small: str, tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in CARD
    (told,) = messages_of(small, f"gpu={write(tmp_path, CARD.replace(old, new))}")
    assert told.startswith("command line --set gpu=my_gpu.yaml: ") and message in told


def test_a_card_has_a_name_of_its_own_and_is_a_file(messages_of: MessagesOf, small: str, tmp_path: Path) -> None:
    (told,) = messages_of(small, f"gpu={write(tmp_path, name='h100-sxm.yaml')}")
    assert "is named as a card of the catalog, got 'h100-sxm'; rename the file" in told
    (told,) = messages_of(small, "gpu=none.yaml")
    assert "none.yaml: cannot be read (No such file or directory); give a catalog name or a card's YAML" in told
    (tmp_path / "bad.yaml").write_bytes(b"\xff")
    (told,) = messages_of(small, "gpu=bad.yaml")
    assert "bad.yaml: is not UTF-8 text (byte 0)" in told


def test_pools_and_plans_take_cards_of_their_own(load: Load, small: str, tmp_path: Path) -> None:
    write(tmp_path)
    pools = "cluster:\n  pools:\n    - {name: a, gpu: my_gpu.yaml}\n    - {name: b}\n"
    assert [setup.gpu.name for setup in load(small + pools).setups] == ["my_gpu", "h100-sxm"]
    assert "9e+14" in invoke("catalog", "gpus", tmp_path / "my_gpu.yaml").out
