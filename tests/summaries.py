"""Summaries of runs from some of their figures; those left out are what nothing has."""

from collections.abc import Mapping
from typing import Any

from simserve.metrics.figures import Summary
from simserve.metrics.time_split import PARTS
from simserve.tables.schema import SCHEMA

LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s")
LATENCY: Mapping[str, Any] = {"n": 0, **dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "p99.9"))}
REQUESTS = dict.fromkeys(("arrived", "finished", "rejected", "timed_out"), 0)
RESERVED: Mapping[str, Any] = {"waits_frac": 1.0, "is_estimate": False, "max_tokens": None, "without": None}
WINDOW: Mapping[str, Any] = {"start_s": 0.0, "end_s": 0.0, "duration_s": None}


def summary_of(given: Mapping[str, Any]) -> Summary:
    """Return the summary of a run with these figures."""
    known = {key: value for key, value in given.items() if value is not None}
    known |= {"schema": SCHEMA, "name": known.get("name", "run"), "pools": known.get("pools", [])}
    known["window"] = {**WINDOW, **known.get("window", {})}
    if "load" in known:
        known["load"] = {"nominal_per_s": None, "drawn_per_s": None, "off_frac": None, **known["load"]}
    known["trust"] = {"saturated": False, **known.get("trust", {})}
    for groups in ("classes", "tenants", "versions"):
        if groups in known:
            known[groups] = {name: _group(own) for name, own in known[groups].items()}
    if "time_split" in known:
        mean = dict.fromkeys(PARTS, 0.0) | known["time_split"]["mean"]
        known["time_split"] = {"parts": list(PARTS), "slowest": {}, **known["time_split"], "mean": mean}
    if "answer" in known:
        known["answer"] = {"confidence": 0.95, **known["answer"]}
    if (reserved := known.get("kv", {}).get("reservation")) is not None:
        known["kv"] = {**known["kv"], "reservation": {**RESERVED, **reserved}}
    if "transfer" in known:
        known["transfer"] = {**LATENCY, **known["transfer"]}
    return Summary.model_validate(_group(known))


def _group(given: Mapping[str, Any]) -> dict[str, Any]:
    known = {key: value for key, value in given.items() if value is not None}
    known["requests"] = {**REQUESTS, **known.get("requests", {})}
    if "slo_attainment" in known:
        known["slo_attainment"] = {"frac": None, **known["slo_attainment"]}
    return known | {key: {**LATENCY, **known[key]} for key in LATENCIES if key in known}
