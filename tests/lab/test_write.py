"""Writing a calibration: what nobody changed stays, and a failure leaves the file as it was."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from simserve.cost.calibration import calibration_path, read_calibration, shipped_names
from simserve.errors import CalibrationError, OutputError
from simserve.lab.kernels import KernelFit, Residuals
from simserve.lab.write import calibration_data, write_calibration, write_host
from tests.cli.invoke import invoke
from tests.lab.kernels.timings import GEMM, needs_package

MADE = {"from": [{"file": "mine.csv", "n_rows": 100}]}


def data(n_rows: int = 100, made: dict[str, Any] = MADE) -> Any:
    """A calibration of one operation."""
    residuals = Residuals(30, 0.05, 0.04, -0.01, 0.9, 1.1)
    fit = KernelFit("gemm", "bf16", GEMM, n_rows, {"faster than the roofs": 2}, residuals)
    return calibration_data("h100-sxm", "vllm", "1.0", [fit], made)


def test_the_date_stays_while_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / "h100-sxm" / "vllm.json"
    assert write_calibration(path, data(), "2026-01-01")
    before = path.read_bytes()
    assert not write_calibration(path, data(), "2026-01-02")
    assert path.read_bytes() == before
    assert json.loads(before)["made"] == {**MADE, "date": "2026-01-01"}


@pytest.mark.parametrize("other", [data(n_rows=101), data(made={"from": []})])
def test_the_date_is_todays_when_anything_changes(other: Any, tmp_path: Path) -> None:
    path = tmp_path / "vllm.json"
    write_calibration(path, data(), "2026-01-01")
    assert write_calibration(path, other, "2026-01-02")
    assert json.loads(path.read_text())["made"]["date"] == "2026-01-02"


@pytest.mark.parametrize("other", [data(), data(n_rows=101)])
def test_host_constants_survive_new_kernels(other: Any, tmp_path: Path) -> None:
    path = tmp_path / "vllm.json"
    write_calibration(path, data(), "2026-01-01")
    write_host(path, {"step_host_s": 2e-3}, "fitted to three runs")
    write_calibration(path, other, "2026-01-02")
    assert json.loads(path.read_text())["host"] == {"step_host_s": {"value": 2e-3, "source": "fitted to three runs"}}
    assert read_calibration(path).host == {"step_host_s": 2e-3}
    assert json.loads(path.read_text())["kernels"] == other["kernels"]


@needs_package
@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in shipped_names() if not name.startswith("mi3")])
def test_a_refit_of_the_kernels_gives_the_shipped_file_to_the_last_bit(name: str, tmp_path: Path) -> None:
    gpu, engine = name.split("/")
    shipped, copy = calibration_path(name), tmp_path / f"{name}.json"
    copy.parent.mkdir()
    copy.write_bytes(shipped.read_bytes())
    assert "unchanged" in invoke("calibrate", gpu, "--engine", engine, "--out", tmp_path).err
    assert copy.read_bytes() == shipped.read_bytes()


def test_new_host_constants_replace_the_old_and_leave_the_kernels(tmp_path: Path) -> None:
    path = tmp_path / "vllm.json"
    write_calibration(path, data(), "2026-01-01")
    write_host(path, {"step_host_s": 2e-3, "gap_s": 1e-6}, "first")
    write_host(path, {"step_host_s": 3e-3}, "second")
    result = json.loads(path.read_text())
    assert result["host"] == {"step_host_s": {"value": 3e-3, "source": "second"}}
    assert result["kernels"] == data()["kernels"]
    assert result["made"]["date"] == "2026-01-01"


def test_host_constants_need_kernels_first(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"vllm\.json: no such calibration; run simserve calibrate first"):
        write_host(tmp_path / "vllm.json", {"step_host_s": 2e-3}, "nothing")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("before", ["{", "[1]", '{"schema": "simserve.calibration/0", "host": {"step_host_s": 1}}'])
def test_what_is_no_calibration_is_replaced_whole(before: str, tmp_path: Path) -> None:
    path = tmp_path / "vllm.json"
    path.write_text(before)
    assert write_calibration(path, data(), "2026-01-02")
    assert json.loads(path.read_text()) == {**data(), "made": {**MADE, "date": "2026-01-02"}, "host": {}}


def test_a_file_without_a_date_gets_one(tmp_path: Path) -> None:
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps(data() | {"host": {}}))
    write_calibration(path, data(), "2026-01-02")
    assert json.loads(path.read_text())["made"]["date"] == "2026-01-02"


@pytest.mark.parametrize("step", ["replace", "write_bytes"])
def test_a_failure_leaves_the_file_as_it_was(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "vllm.json"
    write_calibration(path, data(), "2026-01-01")
    before = path.read_bytes()

    def disk_full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os if step == "replace" else Path, step, disk_full)
    with pytest.raises(OutputError, match="No space left on device"):
        write_calibration(path, data(n_rows=101), "2026-01-02")
    with pytest.raises(OutputError, match="No space left on device"):
        write_host(path, {"step_host_s": 2e-3}, "one run")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
