"""Server: that of a scenario, with host constants and kernels that a fit may change."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from simserve.cost.calibration import FORMS, calibration_path
from simserve.errors import CalibrationError
from simserve.input_files import read_json
from simserve.lab.fit import Theta, rounded
from simserve.scenario import Scenario
from simserve.scenario.loader import load_scenario
from simserve.tables.files import json_text

STAND_IN = (
    "workload={client: {kind: closed_loop, concurrency: 1}, lengths: {kind: fixed, prompt_tokens: 1, output_tokens: 1},"
    " n_requests: 1}",
    "measure={}",
)
"""Overrides that replace a scenario's own workload, as the log is the workload."""

ATTENTION = ("prefill_attention", "decode_attention", "mla_prefill", "mla_decode")
KERNELS: Mapping[str, tuple[str, ...]] = {"matrices": ("gemm",), "experts": ("moe",), "attention": ATTENTION}
"""Operations with work that a factor of a server's own kernels slows."""


class Server:
    """The server of a scenario, with constants and kernels that may be changed."""

    def __init__(self, path: Path) -> None:
        """Load the scenario. Raises ScenarioError, and CalibrationError for pools that differ."""
        self.path = path
        self.scenario = self.with_constants({})
        kinds = {(setup.gpu.name, setup.engine.name, setup.engine.version) for setup in self.scenario.setups}
        if len(kinds) > 1 or any(pool.engine is not None for pool in self.scenario.cluster.pools):
            rule = "the pools must have one GPU and the engine of the scenario"
            raise CalibrationError(f"{path}: {rule}, got {len(self.scenario.setups)} pools; fit one kind at a time")
        self.setup = self.scenario.setups[0]

    @property
    def calibration(self) -> Path | None:
        """File with the kernels; None where they were timed on another GPU, or not at all."""
        named = self.scenario.cluster.pools[0].calibration
        return calibration_path(named.file) if self.setup.calibrated and named is not None else None

    def with_constants(self, constants: Theta) -> Scenario:
        """Return the scenario with these constants of its engine, and factors of its kernels (KERNELS)."""
        given = [f"engine.{name}={value!r}" for name, value in constants.items() if name not in KERNELS]
        if not KERNELS.keys() & constants.keys() or self.calibration is None:
            return load_scenario(self.path, overrides=(*STAND_IN, *given))
        with TemporaryDirectory() as folder:
            file = Path(folder) / "kernels.json"
            file.write_text(json_text(with_kernels(self.calibration, constants)))
            given += [f"cluster.pools.{place}.calibration={file}" for place in range(len(self.scenario.setups))]
            scenario = load_scenario(self.path, overrides=(*STAND_IN, *given))
            assert scenario.setups, "read while the file is there"
            return scenario


def with_kernels(base: Path, constants: Theta) -> Any:
    """Return the content of a calibration with kernels as a server's own, by those of its constants that are in
    KERNELS."""
    content = read_json(base)
    slow = {op: constants[name] for name, ops in KERNELS.items() for op in ops if name in constants}
    return content | {"kernels": slowed(content.pop("kernels"), slow)}


def slowed(kernels: Sequence[Any], slow: Theta) -> list[Any]:
    """Return kernels of a calibration with work that takes so many times as long, by operation; others as they are."""
    result = []
    for row in kernels:
        op, coefficients = row["op"], row["coefficients"]
        if (factor := slow.get(op.removesuffix("_module"))) is not None:
            form = FORMS[op](**coefficients).slowed(factor)
            coefficients = {name: rounded(value) for name, value in asdict(form).items()}
        result.append(row | {"coefficients": coefficients})
    return result
