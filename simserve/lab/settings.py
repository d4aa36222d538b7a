"""Settings of InferenceX, replayed: aggregated or disaggregated servers, with errors by side."""

import csv
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve import catalog
from simserve.cost.calibration import release
from simserve.errors import CalibrationError, CatalogError, ScenarioError
from simserve.input_files import ANSWER_BYTES, read_file
from simserve.lab.serving import CAMPAIGNS, of_server
from simserve.scenario import Scenario
from simserve.simulation import simulate

MARK = "decode_dp_attention"
"""A column that only tables of settings have."""

EXPORT_MARK = "Hardware Key"
"""A column that only exports of InferenceX have. They name no versions, and columns headed (ms) hold seconds."""

MODELS = {"dsr1": "deepseek-v3", "gptoss": "gpt-oss-120b"}
"""Their names of models, and ours; DeepSeek-R1 is a DeepSeek-V3."""

ENGINES = {"sglang": "sglang", "trt": "trtllm", "vllm": "vllm"}
"""Their names of engines, and ours."""

CAMPAIGN = CAMPAIGNS["inferencemax"]
"""How they start aggregated servers."""

SHORTEST_FRAC = 0.8
"""Lengths are uniform between this share of isl and osl, and all of it."""

SPARE_TOKENS = 256
"""Tokens of a server's longest request beyond isl + osl (InferenceX, benchmarks/*.sh)."""

MTP_TOKENS_PER_STEP = 1.85
"""Tokens of a step with one proposed token, 85 to 90% of which are right (DeepSeek-V3 report, section 5.4.3)."""

MOST_PROPOSED = 3
"""Most tokens that servers of these settings propose; clients that see more at once get several steps together."""

PROPOSED = {("sglang", "h100-sxm"): 2}
"""Tokens that an engine proposes on a card, where its recipe is known (srt-slurm pull request 121,
--speculative-num-steps)."""

VLLM_BUDGET = 8192
"""Tokens of a step of InferenceX's vLLM servers, which are started with as many slots as clients (InferenceX,
benchmarks/*.sh)."""

DEFAULT_BUDGET = "1.3"
"""First version of TensorRT-LLM with the default of 8,192 tokens a step or more in InferenceX's scripts; before, a step
has the campaign's budget (InferenceX, benchmarks/*_trt*.sh)."""

PLANS_AHEAD = "0.14"
"""First version of vLLM that plans steps ahead by default. InferenceX starts older ones with `--async-scheduling`, so
their host is that of this one."""

GATHERS = frozenset({("sglang", "h100-sxm"), ("trtllm", "h100-sxm")})
"""Engines and cards where collectives of NCCL take tokens between nodes: SGLang's recipes leave out --moe-a2a-backend
(srt-slurm pull request 121), and TensorRT-LLM takes DeepEP only with TRTLLM_CAN_USE_DEEP_EP=1."""

BALANCE: Mapping[str, Mapping[str, int]] = {
    "gpt-oss-120b": {},
    "deepseek-v3": {"timeout_iters": 60, "batching_wait_iters": 0},
}
"""How aggregated TensorRT-LLM servers with DP attention wait for balance (InferenceX, benchmarks/*_trt*.sh,
attention_dp_config); empty: by the engine's defaults."""

MTP_SPARE = 64
"""Tokens of a step besides a prompt and those of all slots, with multi-token prediction (InferenceX,
dsr1_fp8_h200_trt_mtp.sh: a slot for each client; one proposed token in place of three with DP attention)."""

METRICS: Mapping[str, str] = {
    "ttft": "prefill: TTFT",
    "median_ttft": "prefill: median TTFT",
    "tpot": "decode: TPOT",
    "e2e": "both: E2E",
}
"""What is compared, by the side that it depends on most. A closed loop serves concurrency / E2E requests per second, so
throughput per GPU is wrong by as much as E2E."""


NOT_WARMED_UP = frozenset({"deepseek-v3"})
"""Models of servers that began cold: means of TTFT exceed medians by a second over the requests per client. Those of
gpt-oss do not."""


@dataclass(frozen=True)
class Side:
    """The workers of one role, all alike."""

    role: str
    workers: int
    parallel: Mapping[str, int]

    @property
    def n_ranks(self) -> int:
        """Data-parallel ranks of a worker."""
        return self.parallel.get("data", 1)


@dataclass(frozen=True)
class Setting:
    """One closed-loop run: servers, client, and means over its requests."""

    gpu: str
    engine: str
    version: str
    """Empty where the image does not tell."""
    model: str
    weight_dtype: str
    kv_dtype: str
    sides: tuple[Side, ...]
    tokens_per_step: float | None
    """Mean tokens of a decode step with multi-token prediction; None without."""
    isl: int
    osl: int
    concurrency: int
    measured_s: Mapping[str, float]
    """Seconds by the names of METRICS."""

    @property
    def group(self) -> str:
        """The unit of comparison: hardware, engine, dtype, roles, and whether tokens are proposed."""
        roles = "disaggregated" if len(self.sides) > 1 else "aggregated"
        mtp = "" if self.tokens_per_step is None else " MTP"
        return f"{self.gpu} {self.engine} {self.model} {self.weight_dtype} {roles}{mtp}"

    @property
    def label(self) -> str:
        """The name of the run in one line."""
        sides = ", ".join(
            f"{side.workers} {side.role} " + " ".join(f"{name} {n}" for name, n in side.parallel.items())
            for side in self.sides
        )
        return f"{self.group} ({sides}) {self.isl}/{self.osl} x {self.concurrency}"


@dataclass(frozen=True)
class SettingPoint:
    """A setting as predicted; `predicted_s` is None where the simulator refuses it, and `reason` says why."""

    setting: Setting
    predicted_s: Mapping[str, float] | None
    reason: str = ""


def is_table_of_settings(path: Path) -> bool:
    """Tell whether a file is a CSV of settings."""
    return MARK in _header(path)


def is_export(path: Path) -> bool:
    """Tell whether a file is a CSV that InferenceX's page exports."""
    return EXPORT_MARK in _header(path)


def _header(path: Path) -> list[str]:
    try:
        return read_file(path, ANSWER_BYTES).split(b"\n", 1)[0].decode("utf-8", "replace").strip().split(",")
    except OSError:
        return []


class _LeftOut(Exception):
    """A row that is a setting, but that cannot be replayed."""


def read_settings(path: Path) -> tuple[list[Setting], dict[str, int]]:
    """Read settings, and count by reason those left out. Raises CalibrationError."""
    rows = list(csv.DictReader(StringIO(read_file(path, ANSWER_BYTES).decode("utf-8", "replace"), newline="")))
    settings: list[Setting] = []
    left_out: Counter[str] = Counter()
    for line, row in enumerate(rows, 2):
        try:
            settings.append(_setting(path, line, row))
        except _LeftOut as reason:
            left_out[str(reason)] += 1
    if not settings:
        got = "; ".join(f"{n} left out: {reason}" for reason, n in left_out.items()) or "none"
        raise CalibrationError(f"{path}: must contain settings that can be simulated, got {got}; give others")
    return settings, dict(left_out)


def _setting(path: Path, line: int, row: Mapping[str, str]) -> Setting:
    try:
        names = ("prefill", "decode") if row["disagg"] == "True" else ("decode",)
        framework, model, hardware, fp4 = row["framework"], row["model"], row["hardware"], row["precision"] == "fp4"
        engine = _known([each for each in ENGINES if each in framework], f"the engine {framework}")
        model = MODELS[_known(MODELS.keys() & {model}, f"the model {model}")]
        gpus = {hardware, f"{hardware}-sxm"} & set(catalog.names("gpus"))
        gpu = _known(gpus, f"the GPU {hardware}")
        sides = tuple(_side(row, name, len(names) == 1) for name in names)
        version = _version(row["image"])
        keeps_16_bits = engine == "sglang" and _keeps_16_bits(gpu, version)
        return Setting(
            gpu=gpu,
            engine=ENGINES[engine],
            version=version,
            model=model,
            weight_dtype="mxfp4" if model == "gpt-oss-120b" else "nvfp4" if fp4 else row["precision"],
            kv_dtype="bf16" if keeps_16_bits else CAMPAIGN.cache_dtype(ENGINES[engine], model, gpu) or "fp8",
            sides=sides,
            tokens_per_step=_tokens_per_step(row) if row["spec"] == "mtp" else None,
            isl=int(row["isl"]),
            osl=int(row["osl"]),
            concurrency=int(row["concurrency"]),
            measured_s={
                "ttft": float(row["mean_ttft_s"]),
                "median_ttft": float(row["median_ttft_s"]),
                "tpot": float(row["mean_tpot_s"]),
                "e2e": float(row["mean_e2el_s"]),
            },
        )
    except KeyError as error:
        raise CalibrationError(f"{path}: must be settings of InferenceX, got no column {error}; add it") from None
    except (ValueError, TypeError) as error:
        raise CalibrationError(f"{path}:{line}: must be a setting of InferenceX ({error}); correct the row") from None


def _known(choices: Collection[str], what: str) -> str:
    """Return the only choice. Raises _LeftOut where there is none."""
    if not choices:
        raise _LeftOut(f"{what} is not simulated")
    return next(iter(choices))


def _keeps_16_bits(gpu: str, version: str) -> bool:
    """Tell whether servers under SGLang keep latent vectors in 16 bits: on Hopper, and on cards of CDNA 3 before they
    got --kv-cache-dtype with 0.5.7 (InferenceX, perf-changelog.yaml, pull requests 544 and 545)."""
    if gpu in ("mi300x", "mi325x"):
        return bool(version) and release(version) < (0, 5, 7)
    return gpu in ("h100-sxm", "h200-sxm")


def _side(row: Mapping[str, str], name: str, serves_all: bool) -> Side:
    """Return one side. Raises _LeftOut where its columns disagree."""
    workers, tensor, expert = (int(float(row[f"{name}_{key}"])) for key in ("workers", "tp", "ep"))
    workers = max(1, workers)
    if not serves_all:
        all_gpus = int(float(row[f"n_gpus_{name}"]))
        if tensor == expert == 1:  # not given: a worker is as wide as its GPUs
            tensor = expert = all_gpus // workers
        if workers * max(tensor, expert) != all_gpus:
            raise _LeftOut("columns disagree about the number of GPUs")
    n_gpus = max(tensor, expert)
    by_rank = row[f"{name}_dp_attention"] == "True" or tensor < n_gpus
    split = {"data": n_gpus} if by_rank else {"tensor": tensor}
    return Side("both" if serves_all else name, workers, {**split, "expert": expert})


def _version(image: str) -> str:
    """Return the engine's version that an image names; Dynamo's runtimes have their own."""
    version = re.search(r":v?(\d+\.\d+\.\d+)", image)
    return "" if version is None or "dynamo" in image else version[1]


def _tokens_per_step(row: Mapping[str, str]) -> float:
    """Return the tokens of a step: those that clients see at once, or as published where they see several steps."""
    seen = float(row["mean_itl_s"]) / float(row["mean_tpot_s"])
    return seen if 1 < seen < 1 + MOST_PROPOSED else MTP_TOKENS_PER_STEP


def speculation_of(tokens_per_step: float, n_proposed: int | None = None) -> dict[str, Any]:
    """Return multi-token prediction with that mean, each proposed token accepted as often as the one before it."""
    n = n_proposed or (1 if tokens_per_step < 2 else MOST_PROPOSED)
    roots = np.roots([1.0] * n + [1 - tokens_per_step])
    acceptance = next(float(root.real) for root in roots if abs(root.imag) < 1e-9 and root.real > 0)
    return {"kind": "mtp", "tokens": n, "acceptance": min(acceptance, 1.0)}


def scenario_of_setting(setting: Setting, requests_per_client: int, calibration: Path | None = None) -> Scenario:
    """Return the setting as a scenario, with a calibration of its own if given. Raises ScenarioError."""
    engine: dict[str, Any] = {"version": setting.version} if setting.version else {}
    engine |= CAMPAIGN.moe_backend(setting.engine, setting.model, setting.gpu)
    if setting.engine == "vllm" and setting.version:
        engine["version"] = max(setting.version, PLANS_AHEAD, key=release)
    lengths = {
        name: [max(1, round(SHORTEST_FRAC * most)), most]
        for name, most in (("prompt_tokens", setting.isl), ("output_tokens", setting.osl))
    }
    return Scenario.from_dict(
        {
            "schema": "simserve/1",
            "model": setting.model,
            "gpu": setting.gpu,
            "engine": {"name": setting.engine, **engine},
            "weight_dtype": setting.weight_dtype,
            "kv_dtype": setting.kv_dtype,
            "cluster": {"pools": [_pool(setting, side, calibration) for side in setting.sides]},
            "workload": {
                "client": {"kind": "closed_loop", "concurrency": setting.concurrency},
                "lengths": {"kind": "uniform", **lengths},
                "n_requests": requests_per_client * setting.concurrency,
                "max_tokens": setting.osl,
            },
        }
    )


def _pool(setting: Setting, side: Side, calibration: Path | None) -> dict[str, Any]:
    parallel: dict[str, Any] = dict(side.parallel)
    if (setting.engine, setting.gpu) in GATHERS:
        parallel["exchange"] = "gather"
    if setting.engine == "trtllm" and side.role == "both" and side.n_ranks > 1:
        parallel["balance"] = BALANCE.get(setting.model)
    pool: dict[str, Any] = {
        "name": side.role,
        "role": side.role,
        "replicas": side.workers,
        "parallel": parallel,
        "enable_prefix_caching": False,
        "max_model_len": setting.isl + setting.osl + SPARE_TOKENS,
    }
    memory_frac = of_server(CAMPAIGN.memory_fracs, setting.engine, setting.model)
    if memory_frac is not None:
        pool["gpu_memory_utilization"] = memory_frac
    if setting.engine == "vllm":
        limits = {"max_num_batched_tokens": VLLM_BUDGET, "max_num_seqs": setting.concurrency}
        pool["scheduler"] = {"kind": "chunked", **limits}
    if setting.engine == "trtllm" and side.role == "both":
        pool["scheduler"] = {"kind": "trtllm", **_trtllm_limits(setting, side)}
    if calibration is not None:
        pool["calibration"] = str(calibration)
    if setting.tokens_per_step is not None:
        pool["speculation"] = speculation_of(setting.tokens_per_step, PROPOSED.get((setting.engine, setting.gpu)))
    return pool


def _trtllm_limits(setting: Setting, side: Side) -> dict[str, int]:
    """Return the slots and the tokens a step of an aggregated TensorRT-LLM server, as far as its script sets them."""
    if setting.model == "deepseek-v3" and setting.tokens_per_step is not None:
        slots = max(1, setting.concurrency // side.n_ranks)
        n_tokens = 1 + (MOST_PROPOSED if side.n_ranks == 1 else 1)
        return {"max_batch_size": slots, "max_num_tokens": n_tokens * slots + setting.isl + MTP_SPARE}
    if release(setting.version) >= release(DEFAULT_BUDGET):
        return {}
    budget = CAMPAIGN.budgets.get(f"trtllm {setting.model}", CAMPAIGN.budgets["trtllm"])
    return {"max_num_tokens": budget.tokens(setting.isl, setting.concurrency)}


def replay_settings(
    settings: Sequence[Setting], requests_per_client: int, progress: Callable[[str], None] | None = None
) -> list[SettingPoint]:
    """Predict each setting, in order; `progress` gets the name of each."""
    points = []
    for i, setting in enumerate(settings, 1):
        if progress is not None:
            progress(f"{i} of {len(settings)}: {setting.label}")
        points.append(replay_setting(setting, requests_per_client))
    return points


def replay_setting(setting: Setting, requests_per_client: int, calibration: Path | None = None) -> SettingPoint:
    """Predict one setting."""
    try:
        scenario = scenario_of_setting(setting, requests_per_client, calibration)
    except (ScenarioError, CatalogError) as error:
        problems = getattr(error, "problems", None)
        return SettingPoint(setting, None, str(error) if not problems else "; ".join(map(str, problems)))
    requests = simulate(scenario).columns["requests"]
    predicted = {name: float(np.nanmean(requests[f"{name}_s"])) for name in ("ttft", "tpot", "e2e")}
    return SettingPoint(setting, {**predicted, "median_ttft": float(np.nanmedian(requests["ttft_s"]))})


def errors_by_group(points: Sequence[SettingPoint], metric: str) -> dict[str, NDArray[np.float64]]:
    """Return the signed errors, `(n,)`, of the settings of each group that were predicted, by the group's name."""
    groups: dict[str, list[float]] = {}
    for point in points:
        if point.predicted_s is not None:
            ratio = point.predicted_s[metric] / point.setting.measured_s[metric]
            groups.setdefault(point.setting.group, []).append(ratio - 1)
    return {name: np.array(signed) for name, signed in sorted(groups.items())}
