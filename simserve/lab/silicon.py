"""Blackwell servers of `aiconfigurator-core` (NVIDIA, Apache-2.0): its measured samples as serving runs.

Aggregated servers without ranks or pipelines are read, of the cards on which no server was fitted.
"""

from pathlib import Path

import pandas as pd

from simserve.lab.campaigns import ServingRow
from simserve.lab.kernels.package import package_folder
from simserve.lab.run_tables import row_of

FILE = "silicon_sample.csv"
CARDS = ("b200_sxm", "b300_sxm", "gb200", "gb300")
MOST_IN_FLIGHT = 256
NUMBERED = r"\d+\.\d+\.\d+.*"
"""Versions; others are nightly builds, which run as the engine's default."""
TIMES = {"ttft_ms_mean": ("silicon_ttft_ms", "median"), "tpot_ms_mean": ("silicon_tpot_ms", "median")}
SERVER = ["engine", "engine_version", "gpu", "model", "weight_dtype", "tp", "ep", "isl", "osl", "concurrency"]


def silicon_path() -> Path:
    """Return the file with the samples. Raises CalibrationError where the package is not installed."""
    return package_folder() / FILE


def silicon_rows() -> list[ServingRow]:
    """Return the servers, one row a setting, at the medians of its samples. Raises CalibrationError."""
    path = silicon_path()
    rows = pd.read_csv(path).query("mode == 'agg' and attention_dp_size == 1")
    rows = rows[rows.system.isin(CARDS) & (rows.pp_size.fillna(1) == 1)]
    in_flight = rows.silicon_data_source.str.extract(r"silicon_concurrency=(\d+)")[0].astype(float)
    ep = rows.moe_ep_size.fillna(1).clip(lower=1)
    together = (ep > 1) & (rows.tp_size > 8)  # these give the product of both
    rows = rows.assign(
        engine=rows.backend,
        engine_version=rows.backend_version.fillna("").where(lambda each: each.str.fullmatch(NUMBERED), ""),
        gpu=rows.system,
        model=rows.model_path,
        weight_dtype=rows[["model_path", "gemm_quant_mode", "precision"]].apply(_weight_dtype, axis=1),
        tp=rows.tp_size.where(~together, rows.tp_size / ep).astype(int),
        ep=ep.astype(int),
        concurrency=in_flight.fillna(rows.batch_size).astype(int),
    )
    rows = rows[(rows.silicon_ttft_ms > 0) & (rows.silicon_tpot_ms > 0) & (rows.concurrency <= MOST_IN_FLIGHT)]
    table = rows.groupby(SERVER, sort=True).agg(**TIMES).reset_index().astype(str)
    values = (dict(zip(table.columns, row, strict=True)) for row in table.itertuples(index=False))
    return [row_of(path, line, each) for line, each in enumerate(values, 2)]


def _weight_dtype(row: "pd.Series[str]") -> str:
    model, matrices, precision = row
    if "gpt-oss" in model:
        return "mxfp4"
    if matrices == "int4_wo":
        return "int4"
    blocks = "fp8" if "llama" in model.lower() else "fp8_block"
    return {"fp8": blocks, "fp4": "nvfp4", "nvfp4": "nvfp4"}.get(str(precision), "bf16")
