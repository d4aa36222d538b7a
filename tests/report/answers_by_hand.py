"""Answers of commands made by hand for spreadsheets: round numbers, so that what comes of them can be worked out."""

from typing import Any

import numpy as np
from pydantic import TypeAdapter

from simserve.metrics.answers.capacity import CapacityAnswer
from simserve.metrics.answers.comparison import ComparisonAnswer
from simserve.metrics.answers.plan import PlanAnswer
from simserve.metrics.answers.struct import Struct
from simserve.metrics.answers.sweep import SweepAnswer
from simserve.metrics.result_folder import ResultFolder
from simserve.tables.columns import Categorical
from tests.report.check.test_words import result
from tests.summaries import summary_of

LATENCY = {"n": 100, "mean": 0.2, "std": 0.1, "p50": 0.1, "p90": 0.2, "p95": 0.3, "p99": 0.4, "p99.9": 0.5, "max": 0.6}


def run_answer(name: str = "chat", **changes: Any) -> ResultFolder:
    """Two replicas of two GPUs at 3 dollars: 12 requests/s offered, 99.9% good, prompts of 300 and answers of 100."""
    answer: dict[str, Any] = {
        "schema": "simserve/1",
        "name": name,
        "seed": 7,
        "digest": "0123abcd",
        "version": "0.1.0",
        "window": {"start_s": 10.0, "end_s": 110.0, "duration_s": 100.0},
        "requests": {"offered": 1300, "arrived": 1200, "finished": 1200, "rejected": 0, "timed_out": 0},
        "slo": {"ttft_s": 0.5, "tpot_s": 0.05},
        **dict.fromkeys(("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s"), LATENCY),
        "offered_per_s": 12.0,
        "requests_per_s": 12.0,
        "served_per_s": 12.0,
        "input_tokens_per_s": 3600.0,
        "output_tokens_per_s": 1200.0,
        "slo_attainment": {
            "frac": 0.999,
            "low_frac": 0.995,
            "high_frac": 1.0,
            "by_slo": {"ttft_s": 1.0, "tpot_s": 0.999},
        },
        "goodput": {"per_s": 11.988, "per_gpu_s": 2.997, "per_usd": 3596.4},
        "trust": {"saturated": False},
        "pools": [pool("serve", 2, 2)],
        "prediction": {
            "replays": 8,
            "confidence": 0.9,
            "latencies": {"ttft_s": {"p99": [0.35, 0.45]}},
            "slo_probability": 0.8,
        },
        "warnings": ["=1+1 is what a load was called"],
    }
    return ResultFolder("run", name, summary_of(answer | changes), timeseries(2))


def pool(name: str, n_replicas: int, gpus_per_replica: int, gpu: str = "h100-sxm") -> dict[str, Any]:
    """The facts of one."""
    return {
        "name": name,
        "role": "both",
        "n_replicas": n_replicas,
        "gpus_per_replica": gpus_per_replica,
        "ranks_per_replica": 1,
        "gpu": gpu,
        "model": "llama-3.1-8b",
        "engine": "vllm",
        "scheduler": "chunked",
        "calibrated": True,
        "calibration": "h100-sxm/vllm 0.24.0",
        "engine_version": "0.19",
        "kv_verified": True,
        "price_per_gpu_hour_usd": 3.0,
    }


def timeseries(n_replicas: int, n_intervals: int = 3, pool_name: str = "serve") -> dict[str, Any]:
    """Replica r has a queue of r + i in second i, a KV share of r / 10 + i / 100, and 10 tokens a second."""
    replica = np.repeat(np.arange(n_replicas), n_intervals)
    start_s = np.tile(np.arange(n_intervals, dtype=float), n_replicas)
    n = len(start_s)
    ten, half = np.full(n, 10.0), np.full(n, 0.5)
    return {
        "replica": replica.astype(np.int32),
        "pool": Categorical(np.zeros(n, np.int32), (pool_name,)),
        "start_s": start_s,
        "end_s": start_s + 1,
        "queue_len": replica + start_s,
        "running": np.ones(n),
        "kv_frac": replica / 10 + start_s / 100,
        "prefill_tokens_per_s": ten,
        "output_tokens_per_s": ten,
        "mfu": half,
        "mbu": half,
        "busy_frac": half,
    }


def point(offered: float, attained: float, **more: Any) -> dict[str, Any]:
    """One load that was tried."""
    latency = {"p50": offered / 100, "p90": offered / 50, "p99": offered / 25, "p99.9": offered / 20}
    return {
        "scale": offered / 12,
        "offered_per_s": offered,
        "served_per_s": offered,
        "requests_per_s": offered,
        "output_tokens_per_s": offered * 100,
        "n_runs": 8,
        "n_requests": 9600,
        "attained_frac": attained,
        "low_frac": attained - 0.001,
        "high_frac": min(1.0, attained + 0.001),
        "saturated": False,
        "by_slo": {"ttft_s": attained, "tpot_s": 1.0},
        **dict.fromkeys(("ttft_s", "tpot_s", "itl_s", "e2e_s"), latency),
        **more,
    }


def estimate(value: float) -> dict[str, float]:
    """With an interval of a tenth."""
    return {"value": value, "low": value * 0.95, "high": value * 1.05}


def capacity_answer(**changes: Any) -> ResultFolder:
    """Return what is read back of `capacity_json`."""
    return _capacity(capacity_json() | changes)


def _capacity(answer: dict[str, Any]) -> ResultFolder:
    schema: TypeAdapter[Any] = TypeAdapter(CapacityAnswer)
    return ResultFolder("capacity", "chat", schema.validate_python(answer, strict=True))


def capacity_json() -> dict[str, Any]:
    """Two replicas of two GPUs that hold 18 requests/s, 4.5 a GPU."""
    return {
        "version": "0.1.0",
        "scenario": {"name": "chat", "digest": "0123abcd", "seed": 7},
        "goal_frac": 0.99,
        "slo": {"ttft_s": 0.5, "tpot_s": 0.05},
        "slo_classes": {},
        "asked": "rate",
        "pools": [pool("serve", 2, 2)],
        "warnings": [],
        "state": "found",
        "answer": {
            "confidence": 0.95,
            "n_seeds": 8,
            "n_requests": 9600,
            "n_enough": True,
            "is_precise": True,
            "precision_frac": 0.03,
            "scale": estimate(1.5),
            "offered_per_s": estimate(18.0),
            "per_gpu_s": estimate(4.5),
            "per_usd": estimate(5400.0),
            "per_kwh": None,
            "fleet": {"n_gpus": 4, "usd_per_hour": 12.0, "kw": 2.8},
            "fails_first": "ttft_s",
        },
        "points": [point(12.0, 1.0), point(17.0, 0.995), point(20.0, 0.97)],
    }


def replicas_answer(**changes: Any) -> ResultFolder:
    """Return what is read back of `replicas_json`."""
    return _capacity(replicas_json() | changes)


def replicas_json() -> dict[str, Any]:
    """`capacity --replicas serve`: three replicas of two GPUs are enough for 12 requests/s."""
    probed = [point(12.0, share, replicas=n, scale=n) for n, share in ((2, 0.9), (3, 0.995), (4, 1.0))]
    result = {
        "replicas": 3,
        "n_seeds": 8,
        "low_frac": 0.994,
        "high_frac": 0.996,
        "fleet": {"n_gpus": 6, "usd_per_hour": 18.0, "kw": 4.2},
    }
    common = capacity_json() | {"asked": "replicas", "pool": "serve", "confidence": 0.95}
    return common | {"answer": result, "points": probed}


def ratio_answer(splits: dict[str, float]) -> ResultFolder:
    """`capacity --ratio` with splits that hold these requests/s on four GPUs; the last is all of them together."""
    made = [{"split": name, "replicas": {"prefill": 1, "decode": 1}, "state": "found"} for name in splits]
    efficiency = {key: capacity_json()["answer"][key] for key in ("per_usd", "per_kwh", "fleet", "fails_first")}
    made = [
        split | efficiency | {"offered_per_s": estimate(held), "per_gpu_s": estimate(held / 4)}
        for split, held in zip(made, splits.values(), strict=True)
    ]
    return _capacity(capacity_json() | {"asked": "ratio", "answer": None, "splits": made[:-1], "together": made[-1]})


def check_answer() -> ResultFolder:
    """A check that lost 6.2% of p99 goodput."""
    return ResultFolder("check", "chat", result())


def comparison_answer() -> ResultFolder:
    """Return what is read back of `comparison_json`."""
    answer = ComparisonAnswer.model_validate(comparison_json(), strict=True)
    return ResultFolder("compare", "=new against old", answer)


def comparison_json() -> dict[str, Any]:
    """B has half the p99 TTFT of A; of the rest nothing can be told."""
    measure = {"key": "ttft_s.p99", "label": "p99 TTFT", "unit": "s", "a": 0.4, "b": 0.2, "difference": -0.2}
    measure |= {"low": -0.25, "high": -0.15, "change_frac": -0.5, "verdict": "better"}
    unclear = {"key": "goodput.per_s", "label": "goodput", "unit": "per_s", "a": 10.0, "b": 10.0, "difference": 0.0}
    unclear |= {"low": None, "high": None, "change_frac": 0.0, "verdict": "unclear"}
    return {
        "a": "old",
        "b": "=new",
        "confidence": 0.95,
        "how": "10 pairs",
        "warnings": [],
        "measures": [measure, unclear],
    }


def plan_answer(**changes: Any) -> ResultFolder:
    """Return what is read back of `plan_json`."""
    return ResultFolder("plan", "chat", PlanAnswer.model_validate(plan_json() | changes, strict=True))


def as_json(study: ResultFolder) -> dict[str, Any]:
    """Return an answer as its file has it."""
    return study.answer.facts() if isinstance(study.answer, Struct) else dict(study.answer)


def plan_json() -> dict[str, Any]:
    """24 requests/s at the peak, 12 on average; four replicas of two GPUs at 3 dollars hold it, and one is spare."""
    a_month = 12.0 * 730 * 3600  # requests
    option = {
        "rank": 1,
        "option": "h100-sxm TP 2",
        "gpu": "h100-sxm",
        "tensor": 2,
        "how": "together",
        "state": "holds",
        "reason": "the cheapest",
        "needed_replicas": 4,
        "replicas": 5,
        "gpus_per_replica": 2,
        "gpus": 10,
        "usd_per_gpu_hour": 3.0,
        "usd_per_hour": 30.0,
        "usd_per_month": 21900.0,
        "output_tokens_per_month": a_month * 100,
        "tokens_per_month": a_month * 400,
        "good_tokens_per_month": a_month * 99,
        "offered_per_s": 24.0,
        "attained_frac": 0.992,
        "ttft_p99_s": 0.4,
    }
    other = option | {"rank": 2, "option": "l40s TP 1", "gpu": "l40s", "tensor": 1, "gpus": 40, "usd_per_gpu_hour": 1.0}
    refused = {
        "rank": None,
        "option": "=a card",
        "gpu": "a card",
        "tensor": 8,
        "state": "refused",
        "reason": "-1 heads",
    }
    return {
        "schema": "simserve/1",
        "version": "0.1.0",
        "scenario": {"name": "chat", "digest": "89ef4567", "seed": 7},
        "goal_frac": 0.99,
        "slo": {"ttft_s": 0.5},
        "slo_classes": {},
        "sentence": "Take h100-sxm TP 2.",
        "state": "found",
        "demand": {"kind": "diurnal", "mean_per_s": 12.0, "sized_for_per_s": 24.0, "mean_load_frac": 0.5},
        "assumed": {"spare_replicas": 1, "growth_frac": 0.1, "months": 12, "hours_per_month": 730}
        | {"given_prices": ["h100-sxm"]},
        "options": [option, other, refused],
        "warnings": [],
    }


def sweep_answer(**changes: Any) -> ResultFolder:
    """Return what is read back of `sweep_json`."""
    return ResultFolder("sweep", "chat", SweepAnswer.model_validate(sweep_json() | changes, strict=True))


def sweep_json() -> dict[str, Any]:
    """Two points that ran and one that did not; the first is the cheapest that meets the goal."""

    def measures(good: float, attained: float, price: float) -> dict[str, Any]:
        result = {"goodput.per_s": good, "slo_attainment.frac": attained, "served_per_s": good}
        result |= {"goodput.per_usd": good * 3600 / (2 * price), "goodput.per_gpu_s": good / 2}
        result |= {"output_tokens_per_s": good * 100, "ttft_s.p99": 0.4, "tpot_s.p99": 0.04, "e2e_s.p99": 4.0}
        return {key: estimate(value) for key, value in result.items()}

    def probed(number: int, gpu: str, price: float, good: float, attained: float) -> dict[str, Any]:
        return {
            "point": number,
            "values": {"gpu": gpu, "cluster.pools.0.replicas": 2},
            "status": "finished",
            "reason": None,
            "n_seeds": 1,
            "fleet": {"n_gpus": 2, "usd_per_hour": 2 * price, "kw": 1.4, "gpus": [gpu]},
            "saturated": False,
            "meets_goal": attained >= 0.99,
            "measures": measures(good, attained, price),
        }

    failed = {"point": 2, "values": {"gpu": "@none", "cluster.pools.0.replicas": 2}, "status": "failed"}
    failed |= {"reason": "no such card", "n_seeds": 0, "fleet": None, "saturated": None, "meets_goal": None}
    return {
        "schema": "simserve/1",
        "version": "0.1.0",
        "scenario": {"name": "chat", "seed": 7},
        "keys": ["gpu", "cluster.pools.0.replicas"],
        "seeds": [7],
        "confidence": 0.95,
        "goal_frac": 0.99,
        "slo": {"ttft_s": 0.5},
        "slo_classes": [],
        "fronts": {"cost_goodput": [0], "ttft_tpot": [0]},
        "best": {
            "per_usd": {"point": 0, "not_told_apart": None},
            "goodput": {"point": 0, "not_told_apart": None},
            "cheapest": {"point": 0},
        },
        "points": [
            probed(0, "h100-sxm", 3.0, 10.0, 0.995),
            probed(1, "l40s", 1.0, 4.0, 0.8),
            failed | {"measures": None},
        ],
    }
