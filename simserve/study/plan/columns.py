"""Columns of plan.parquet and keys of each row of `options` in plan.json."""

from collections.abc import Mapping
from typing import Any

from simserve.study.study_folder import TableRows
from simserve.tables.columns import typed_columns
from simserve.tables.schema import Field

TEXTS = ("option", "gpu", "how", "state", "decision", "reason", "alone_slo", "fails_first")
COUNTS = {
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
    "tied_replicas": "replicas",
    "tied_gpus": "GPUs",
    "tied_n_seeds": "seeds",
    "alone_prompt_tokens": "tokens",
}
AMOUNTS = {
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
    "drawn_per_s": "requests/s",
    "attained_frac": "share 0..1",
    "attained_low_frac": "share 0..1",
    "attained_high_frac": "share 0..1",
    "all_up_attained_frac": "share 0..1",
    "tied_attained_frac": "share 0..1",
    "tied_low_frac": "share 0..1",
    "tied_high_frac": "share 0..1",
    "fewer_attained_frac": "share 0..1",
    "fails_first_frac": "share 0..1",
    "alone_attained_frac": "share 0..1",
    "alone_slo_frac": "share 0..1",
    "alone_refused_frac": "share 0..1",
    **{f"{name}_{level}_s": "s" for name in ("ttft", "tpot", "e2e") for level in ("p50", "p99")},
    "alone_took_s": "s",
}
FLAGS = ("calibrated", "close_call")

COLUMNS = (
    *(Field(name, "category") for name in TEXTS),
    *(Field(name, "replica", unit) for name, unit in COUNTS.items()),
    *(Field(name, "flag") for name in FLAGS),
    *(Field(name, "float", unit) for name, unit in AMOUNTS.items()),
)
"""Columns of plan.parquet; a missing count is null."""


def plan_rows(facts: Mapping[str, Any]) -> TableRows:
    """Return `plan.parquet`."""
    return TableRows("plan.parquet", COLUMNS, typed_columns(COLUMNS, facts["options"]))
