"""Tables of runs: closed-loop runs of real servers, and settings of InferenceX."""

import csv
import re
from collections import Counter
from collections.abc import Collection, Mapping
from io import StringIO
from pathlib import Path

import numpy as np

from simserve import catalog
from simserve.catalog.hub import known_model
from simserve.cost.calibration import release
from simserve.errors import CalibrationError, CatalogError
from simserve.input_files import ANSWER_BYTES, read_file
from simserve.lab.campaigns import ServingRow
from simserve.lab.inferencex import CAMPAIGN, MOST_PROPOSED, Setting, Side, row_of_export

NEEDED = (
    *("engine", "engine_version", "gpu", "model", "weight_dtype", "tp", "isl", "osl", "concurrency"),
    *("ttft_ms_mean", "tpot_ms_mean"),
)
"""Required columns of a table of serving runs; `ep`, `kv_dtype` and the knobs of KNOBS are optional."""
KNOBS = ("max_num_batched_tokens", "max_num_seqs", "num_gpu_blocks")
"""Optional columns with the arguments of a run's server, in vLLM's names whatever the engine."""

MARK = "decode_dp_attention"
"""A column that only tables of settings have."""

EXPORT_MARK = "Hardware Key"
"""A column that only exports of InferenceX's page have."""

NO_VERSIONS = "; the catalog's default versions, as an export names none"
"""What is assumed of servers in an export."""

MODELS = {"dsr1": "deepseek-v3", "gptoss": "gpt-oss-120b"}
"""Their names of models, and ours; DeepSeek-R1 is a DeepSeek-V3."""

ENGINES = {"sglang": "sglang", "trt": "trtllm", "vllm": "vllm"}
"""Their names of engines, and ours."""

MTP_TOKENS_PER_STEP = 1.85
"""Tokens of a step with one proposed token, 85 to 90% of which are right (DeepSeek-V3 report, section 5.4.3)."""


def read_rows(path: Path) -> list[ServingRow]:
    """Read serving runs from a CSV. Raises CalibrationError."""
    try:
        table = list(csv.DictReader(StringIO(read_file(path, ANSWER_BYTES).decode("utf-8"), newline="")))
    except FileNotFoundError:
        raise CalibrationError(f"{path}: no such file; give a CSV of serving runs") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        text, remedy = getattr(error, "strerror", None) or error, "a log of single requests needs --scenario"
        raise CalibrationError(f"{path}: must be a CSV of serving runs ({text}); {remedy}") from None
    if not table:
        raise CalibrationError(f"{path}: must contain serving runs, got none")
    missing = [name for name in NEEDED if name not in table[0]]
    if missing:
        remedy = "a log of single requests needs --scenario"
        if path.suffix in (".yaml", ".yml"):
            remedy = f"a scenario goes with its log: `simserve validate LOG --scenario {path}`"
        raise CalibrationError(f"{path}: columns {', '.join(missing)} are missing; {remedy}")
    return [_row(path, line, values) for line, values in enumerate(table, 2)]


def _row(path: Path, line: int, values: Mapping[str, str]) -> ServingRow:
    short = [name for name in NEEDED if values[name] is None]
    if short:
        raise CalibrationError(f"{path}:{line}: must have {', '.join(short)}, got nothing; fill in the row")
    try:
        whole = {name: int(values[name]) for name in ("tp", "isl", "osl", "concurrency")}
        whole["ep"] = int(values.get("ep") or 1)
        times = {name: float(values[f"{name}_ms_mean"]) / 1e3 for name in ("ttft", "tpot")}
        knobs = {name: int(values[name]) for name in KNOBS if values.get(name)}
    except (TypeError, ValueError) as error:
        raise CalibrationError(f"{path}:{line}: must be numbers ({error}); correct the row") from None
    small = [name for name, value in (whole | times).items() if not 0 < value < np.inf]
    if small:
        raise CalibrationError(f"{path}:{line}: {', '.join(small)} must be positive; correct the row")
    try:
        catalog.load_engine(values["engine"], version=values["engine_version"] or None)
        gpu = catalog.load_gpu(values["gpu"]).name
        model = catalog_model(values["model"])
    except CatalogError as error:
        raise CalibrationError(f"{path}:{line}: {error}") from None
    if whole["osl"] < 2:
        raise CalibrationError(f"{path}:{line}: osl must be at least 2, as a single token has no TPOT; remove the row")
    return ServingRow(
        engine=values["engine"],
        engine_version=values["engine_version"],
        gpu=gpu,
        model=model,
        weight_dtype=values["weight_dtype"],
        tp=whole["tp"],
        ep=whole["ep"],
        isl=whole["isl"],
        osl=whole["osl"],
        concurrency=whole["concurrency"],
        ttft_s=times["ttft"],
        tpot_s=times["tpot"],
        kv_dtype=values.get("kv_dtype") or "",
        knobs=knobs,
    )


def catalog_model(name: str) -> str:
    """Map a checkpoint to the catalog: meta-llama/Llama-3.1-8B-Instruct is llama-3.1-8b; one with another context keeps
    its id. Raises CatalogError."""
    known = known_model(name)
    if known is None:
        catalog.load_model(name)  # refuses an unknown name
    return name if known is None or known.context is not None else known.name


def is_table_of_settings(path: Path) -> bool:
    """Tell whether a file is a CSV of settings, or an export of them."""
    return MARK in _header(path) or is_export(path)


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
        row = row_of_export(row) if EXPORT_MARK in row else row
        names = ("prefill", "decode") if row["disagg"] == "True" else ("decode",)
        if f"{names[0]}_workers" not in row:
            raise _LeftOut("exports do not say how many workers share the GPUs of prefill and of decode")
        framework, model, hardware, fp4 = row["framework"], row["model"], row["hardware"], row["precision"] == "fp4"
        engine = _known([each for each in ENGINES if each in framework], f"the engine {framework}")
        ours = MODELS.get(model) or getattr(known_model(model), "name", None)
        model = _known([ours] if ours else [], f"the model {model}")
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
