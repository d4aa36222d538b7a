"""Print how far predictions are from Blackwell servers that no constant was fitted to: rows of `aiconfigurator-core`.

python -m benchmarks.blackwell --most 24   # the table of docs/validation.md; 4 runs of a server without --most
"""

import argparse
import tempfile
from importlib import resources
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import pandas as pd

from simserve.lab.campaigns import CAMPAIGNS, run_of
from simserve.lab.run_tables import read_rows
from simserve.lab.runs import Errors, MeasuredRun, by, errors, predict

CARDS = ["b200_sxm", "b300_sxm", "gb200", "gb300"]
MOST_IN_FLIGHT = 256
NUMBERED = r"\d+\.\d+\.\d+.*"
"""Versions; others are nightly builds, which run as the engine's default."""
TIMES = {"ttft_ms_mean": ("silicon_ttft_ms", "median"), "tpot_ms_mean": ("silicon_tpot_ms", "median")}
SERVER = ["engine", "engine_version", "gpu", "model", "weight_dtype", "tp", "ep", "isl", "osl", "concurrency"]


def serving_rows() -> pd.DataFrame:
    """Return the aggregated servers without ranks or pipelines, one row a setting, as a table of serving runs."""
    rows = pd.read_csv(str(resources.files("aiconfigurator_core") / "systems" / "silicon_sample.csv"))
    alone = (rows["mode"] == "agg") & (rows["attention_dp_size"] == 1) & (rows["pp_size"].fillna(1) == 1)
    rows = rows[rows["system"].isin(CARDS) & alone]
    in_flight = rows["silicon_data_source"].str.extract(r"silicon_concurrency=(\d+)")[0].astype(float)
    ep = rows["moe_ep_size"].fillna(1).clip(lower=1)
    together = (ep > 1) & (rows["tp_size"] > 8)  # these give the product of both
    rows = rows.assign(
        engine=rows["backend"],
        engine_version=rows["backend_version"].fillna("").where(lambda each: each.str.fullmatch(NUMBERED), ""),
        gpu=rows["system"],
        model=rows["model_path"],
        weight_dtype=rows[["model_path", "gemm_quant_mode", "precision"]].apply(_weight_dtype, axis=1),
        tp=rows["tp_size"].where(~together, rows["tp_size"] / ep).astype(int),
        ep=ep.astype(int),
        concurrency=in_flight.fillna(rows["batch_size"]).astype(int),
    )
    rows = rows[(rows["silicon_ttft_ms"] > 0) & (rows["silicon_tpot_ms"] > 0) & (rows["concurrency"] <= MOST_IN_FLIGHT)]
    return rows.groupby(SERVER, sort=True).agg(**TIMES).reset_index()


def _weight_dtype(row: "pd.Series[str]") -> str:
    model, matrices, precision = row
    if "gpt-oss" in model:
        return "mxfp4"
    if matrices == "int4_wo":
        return "int4"
    blocks = "fp8" if "llama" in model.lower() else "fp8_block"
    return {"fp8": blocks, "fp4": "nvfp4", "nvfp4": "nvfp4"}.get(str(precision), "bf16")


def runs(most: int) -> list[MeasuredRun]:
    """Return at most so many runs of each engine, card, model and dtype, evenly spaced."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "serving.csv"
        serving_rows().to_csv(path, index=False)
        own = [run_of(row, CAMPAIGNS["inferencemax"], "silicon_sample.csv") for row in read_rows(path)]
    sets: dict[tuple[str, ...], list[MeasuredRun]] = {}
    for run in own:
        sets.setdefault((run.engine, run.gpu, run.model, run.weight_dtype), []).append(run)
    places = [np.unique(np.linspace(0, len(each) - 1, most).round().astype(int)).tolist() for each in sets.values()]
    return [each[place] for each, chosen in zip(sets.values(), places, strict=True) for place in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=4)
    with Pool() as pool:
        predictions = pool.map(predict, runs(parser.parse_args().most), chunksize=1)
    known = [each for each in predictions if each.predicted_s is not None]
    print(f"{len(known)} of {len(predictions)} runs; others do not fit the card or divide the model")
    for name, group in by(known, lambda run: f"{run.engine} {run.gpu} {run.model} {run.weight_dtype}").items():
        tpot, ttft = (errors(group, metric) for metric in ("tpot", "ttft"))
        print(f"{name:44} {len(group):3} TPOT {_percents(tpot)} TTFT {_percents(ttft)}")


def _percents(each: Errors) -> str:
    return f"{100 * each.mape_frac:5.1f}% ({100 * each.bias_frac:+6.1f}%)"


if __name__ == "__main__":
    main()
