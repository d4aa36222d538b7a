"""The package's tables: named and counted as ours are."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simserve import catalog
from simserve.errors import CalibrationError
from simserve.lab.kernels import comm, package
from tests.lab.kernels.timings import needs_package

Lay = Callable[[str, pd.DataFrame], None]


@pytest.fixture
def lay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lay:
    """Put a table where the package would have it."""
    monkeypatch.setattr(package, "package_folder", lambda: tmp_path)

    def write(path: str, rows: pd.DataFrame) -> None:
        file = tmp_path / "data" / f"{path}.parquet"
        file.parent.mkdir(parents=True)
        rows.to_parquet(file)

    return write


def gemms(latency_ms: float = 0.02) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "gemm_dtype": ["bfloat16", "fp8"],
            "m": [16, 16],
            "n": [4096, 4096],
            "k": [4096, 4096],
            "kernel_source": "cublas",
            "latency": latency_ms,
        }
    )


def all_reduces() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "allreduce_dtype": "half",
            "num_gpus": [2, 2, 2],
            "message_size": [1024, 2048, 2048],
            "kernel_source": ["vllm_graph", "vllm_graph", "vllm_eager"],
            "latency": [0.004, 0.005, 0.9],
        }
    )


def test_the_newest_version_is_read_in_our_units_and_names(lay: Lay) -> None:
    for version, latency_ms in (("1.3.0rc9", 0.03), ("1.3.0rc20", 0.02), ("1.2.9", 0.05)):
        lay(f"h100_sxm/gemm/trtllm/{version}/gemm_perf", gemms(latency_ms))
    lay("h100_sxm/comm/trtllm/1.2.9/custom_allreduce_perf", all_reduces())
    table, sources, version = package.read_package("h100-sxm", "trtllm")
    assert version == "1.3.0rc20"
    assert [source.n_rows for source in sources] == [2, 2]
    assert sources[1].file == "h100_sxm/comm/trtllm/1.2.9/custom_allreduce_perf.parquet"  # what the newest lacks
    assert all(len(source.sha256) == 64 for source in sources)
    assert table["dtype"].tolist() == ["bf16", "fp8", "bf16", "bf16"]
    assert table["latency_s"].tolist() == pytest.approx([2e-5, 2e-5, 4e-6, 5e-6])
    assert table["bytes"].dropna().tolist() == [2048, 4096]
    assert not table["kernel"].str.contains("eager").any()  # host time, and 180 times slower


def experts(kernels: list[str]) -> pd.DataFrame:
    shape = {"num_tokens": 8, "hidden_size": 7168, "inter_size": 2048, "topk": 8, "num_experts": 256}
    layout = {"moe_tp_size": 8, "moe_ep_size": 1, "distribution": "balanced", "latency": 0.1}
    return pd.DataFrame({"moe_dtype": "fp8_block", "kernel_source": kernels, **shape, **layout})


def test_kernels_that_were_timed_under_another_engine_alone_are_read_from_there(lay: Lay) -> None:
    """TensorRT-LLM's backend TRTLLM in fp8_block is timed under vLLM, which has it by FlashInfer."""
    lay("b200_sxm/gemm/trtllm/1.3.0/gemm_perf", gemms())
    lay("b200_sxm/moe/trtllm/1.3.0/moe_perf", experts(["deepgemm"]))
    lay("b200_sxm/moe/vllm/0.24.0/moe_perf", experts(["vllm_fp8moe_flashinfer_trtllm_monolithic", "triton"]))
    table, sources, _ = package.read_package("b200-sxm", "trtllm")
    assert table["kernel"].dropna().unique().tolist() == [
        "cublas",
        "deepgemm",
        "vllm_fp8moe_flashinfer_trtllm_monolithic",
    ]
    assert (sources[-1].file, sources[-1].n_rows) == ("b200_sxm/moe/vllm/0.24.0/moe_perf.parquet", 1)


def test_what_the_package_lacks_is_told_with_what_it_has(lay: Lay) -> None:
    lay("h100_sxm/gemm/vllm/0.24.0/gemm_perf", gemms())
    with pytest.raises(CalibrationError, match="has no timings of rtx-4090; it has h100-sxm"):
        package.read_package("rtx-4090", "vllm")
    with pytest.raises(CalibrationError, match="has no timings of h100-sxm under sglang"):
        package.read_package("h100-sxm", "sglang")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(package, "version", not_there)
    with pytest.raises(CalibrationError, match=r"is not installed; pip install 'simserve\[calibrate\]'"):
        package.read_package("h100-sxm", "vllm")


@needs_package
def test_all_reduces_of_the_installed_package_are_read_and_none_goes_uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    small = [each for each in package.FILES if each.name in ("custom_allreduce_perf", "nccl_perf")]
    monkeypatch.setattr(package, "FILES", small)
    table, sources, version = package.read_package("l40s", "vllm")
    assert len(sources) == 2
    assert version
    assert not table["kernel"].str.contains("eager").any()
    assert np.isfinite(table["latency_s"]).all()
    result = [fit for fit in comm.fit(table, catalog.load_gpu("l40s")) if fit.op == "all_reduce"]
    assert {fit.dtype for fit in result} >= {"2", "4"}
    for fit in result:
        rows = table[(table["op"] == "all_reduce") & (table["n_gpus"] == int(fit.dtype))]
        assert fit.n_rows + fit.residuals.n_rows + sum(fit.excluded.values()) == len(rows)
        assert fit.excluded["another kernel is faster"] > 0
        assert fit.excluded["other dtype"] > 0
