"""Plan folder: the files of a plan: JSON, a table of the options, the winner as a scenario, and the page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simserve.study.plan import Plan
from simserve.study.plan_options import Fleets
from simserve.tables.columns import Categorical, Columns
from simserve.tables.files import json_text
from simserve.tables.folder import result_folder
from simserve.tables.kinds import PLAN
from simserve.tables.schema import Field

_TEXTS = ("option", "gpu", "how", "state", "reason", "alone_slo", "fails_first")
_COUNTS = {
    "rank": "",
    "tensor": "GPUs",
    "gpus_per_replica": "GPUs",
    "needed_replicas": "replicas",
    "replicas": "replicas",
    "prefill_replicas": "replicas",
    "decode_replicas": "replicas",
    "gpus": "GPUs",
    "gpus_at_end": "GPUs",
    "outgrown_month": "months",
    "n_seeds": "seeds",
    "fewer_n_seeds": "seeds",
    "alone_prompt_tokens": "tokens",
}
_AMOUNTS = {
    "usd_per_gpu_hour": "USD/h",
    "usd_per_hour": "USD/h",
    "usd_per_month": "USD",
    "usd_per_month_low": "USD",
    "usd_per_month_high": "USD",
    "usd_per_m_output_tokens": "USD per million tokens",
    "usd_per_m_tokens": "USD per million tokens",
    "usd_per_m_good_tokens": "USD per million tokens",
    "usd_per_m_good_tokens_low": "USD per million tokens",
    "usd_per_m_good_tokens_high": "USD per million tokens",
    "usd_per_month_at_end": "USD",
    "output_tokens_per_month": "tokens",
    "tokens_per_month": "tokens",
    "good_tokens_per_month": "tokens",
    "tdp_w": "W",
    "kwh_per_month": "kWh",
    "kwh_per_month_at_tdp": "kWh",
    "kwh_per_m_output_tokens": "kWh per million tokens",
    "busy_frac": "share 0..1",
    "offered_per_s": "requests/s",
    "attained_frac": "share 0..1",
    "attained_low_frac": "share 0..1",
    "attained_high_frac": "share 0..1",
    "all_up_attained_frac": "share 0..1",
    "fewer_attained_frac": "share 0..1",
    "fails_first_frac": "share 0..1",
    "alone_attained_frac": "share 0..1",
    "alone_slo_frac": "share 0..1",
    "alone_refused_frac": "share 0..1",
    **{f"{name}_{level}_s": "s" for name in ("ttft", "tpot", "e2e") for level in ("p50", "p99")},
    "alone_took_s": "s",
}
_FLAGS = ("calibrated", "close_call")

COLUMNS = (
    *(Field(name, "category") for name in _TEXTS),
    *(Field(name, "replica", unit) for name, unit in _COUNTS.items()),
    *(Field(name, "flag") for name in _FLAGS),
    *(Field(name, "float", unit) for name, unit in _AMOUNTS.items()),
)
"""Of plan.parquet; a count that there is none of is null, as a replica is."""


def write_plan(directory: Path, plan: Plan, found: Mapping[str, Any], page: str) -> None:
    """Write all files into a folder, whole or not at all. Raises OutputError."""
    from simserve.tables.parquet import write_table  # late: pyarrow

    with result_folder(directory, PLAN) as folder:
        (folder / "plan.json").write_text(json_text(found), encoding="utf-8")
        (folder / "report.html").write_text(page, encoding="utf-8")
        write_table(folder / "plan.parquet", COLUMNS, columns_of(found["options"]))
        if plan.best is not None:
            (folder / "scenario.yaml").write_text(winner_yaml(plan), encoding="utf-8")


def winner_yaml(plan: Plan) -> str:
    """The scenario that was asked about, with the fleet to take, spare replicas included."""
    assert plan.best is not None, "something holds"
    fleets = Fleets(plan.asked.scenario, plan.best.outcome.option)
    return fleets.of(plan.best.sized.all_up.replicas).to_yaml()


def columns_of(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """The rows of `options` as columns, `(n_options,)` each."""
    columns: Columns = {name: _words([row.get(name) for row in rows]) for name in _TEXTS}
    for name in _COUNTS:
        columns[name] = np.array([-1 if (value := row.get(name)) is None else value for row in rows], np.int32)
    for name in _FLAGS:
        columns[name] = np.array([bool(row.get(name)) for row in rows], np.bool_)
    for name in _AMOUNTS:
        columns[name] = np.array([np.nan if (value := row.get(name)) is None else value for row in rows], np.float64)
    return columns


def _words(values: Sequence[str | None]) -> Categorical:
    words = tuple(dict.fromkeys(value for value in values if value))
    return Categorical(np.array([words.index(value) if value else -1 for value in values], np.int32), words)
