"""Forms of flags: how the value of each becomes that of its key in a scenario, from the engine's meaning of it."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simserve import catalog
from simserve.catalog.hub import known_model
from simserve.errors import CatalogError
from simserve.servers.command_line import Flag
from simserve.servers.server_settings import POOL, BadValue, ServerSettings, number, whole

TOKENS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
"""Suffixes of numbers of tokens: vLLM, engine/arg_utils.py, human_readable_int."""

QUANTIZED: Mapping[str, str] = {
    **dict.fromkeys(("fp8", "fbgemm_fp8", "modelopt", "modelopt_fp8", "w8a8_fp8"), "fp8"),
    **dict.fromkeys(("modelopt_fp4", "nvfp4"), "nvfp4"),
    "mxfp4": "mxfp4",
    "w8a8_int8": "w8a8",
    "experts_int8": "int8",
    **dict.fromkeys(("awq", "awq_marlin", "gptq", "gptq_marlin", "moe_wna16", "bitsandbytes"), "int4"),
}
"""Precision of weights by the engines' names of methods, where the checkpoint does not say."""

METHODS = {
    **dict.fromkeys(("eagle", "eagle3", "eagle2"), "eagle"),
    **dict.fromkeys(("mtp", "nextn", "deepseek_mtp", "qwen3_next_mtp", "glm4_moe_mtp", "ernie_mtp"), "mtp"),
    **dict.fromkeys(("ngram", "prompt_lookup"), "ngram"),
    **dict.fromkeys(("draft_model", "standalone"), "draft_model"),
    "medusa": "medusa",
}
"""Kinds of speculation by the engines' names."""

ACCEPTANCE = 0.7
"""Share of proposed tokens that is accepted, where nothing tells it."""

PROPOSED = 3
"""Proposed tokens of a step, where the command does not say."""

PLACES = {"total": "of all memory", "before_weights": "of weights and KV", "after_weights": "of what weights leave"}
"""What an engine takes its share of memory of."""

Form = Callable[[ServerSettings, Flag, str], None]


def take_model(settings: ServerSettings, flag: Flag, key: str) -> None:
    """Look the model up: by its id, its path, or the name of its folder in a container."""
    try:
        settings.model = catalog.load_model(flag.value)
        return settings.set(flag, key, flag.value)
    except CatalogError as error:
        known, why = known_model(flag.value.rstrip("/").rpartition("/")[2]), str(error)
    if known is None:
        raise BadValue(why.partition(", got '")[0], why.rpartition("; ")[2])
    settings.model, why = catalog.load_model(known.name), f"by the name of its folder, {flag.value}"
    settings.set(flag, key, known.name, why)
    if known.dtype is not None:
        settings.assume("weight_dtype", known.dtype, why)
    if known.context is not None:
        settings.assume(f"{POOL}.max_model_len", known.context, why)
    return None


def take_tokens(settings: ServerSettings, flag: Flag, key: str) -> None:
    """Take a number of tokens, `8192` or `8k`; `auto` and -1 leave it to the engine."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", flag.value)
    if match is not None:
        return settings.set(flag, key, int(float(match[1]) * TOKENS[match[2]]))
    if flag.value in ("auto", "-1"):
        is_chunk = key.endswith("chunked_prefill_size")
        return settings.set(flag, key, None, "prompts are not cut" if is_chunk else "the engine's own")
    raise BadValue("must be a number of tokens", "for example 8192 or 8k")


def take_share(settings: ServerSettings, flag: Flag, key: str) -> None:
    """Take a share of memory: each engine's key has its own meaning of it."""
    share = number(flag.value)
    if not 0 < share <= 1:
        raise BadValue("must be a share from 0 to 1")
    settings.set(flag, key, share, PLACES[catalog.load_engine(settings.engine).share_of])


def _plain(parse: Callable[[str], object]) -> Form:
    """Return the form of values that one function parses."""
    return lambda settings, flag, key: settings.set(flag, key, parse(flag.value))


def take_dtype(settings: ServerSettings, flag: Flag, key: str) -> None:
    """Take the dtype of activations, which is that of weights that are not quantized."""
    if flag.value not in ("auto", "bfloat16", "half", "float16"):
        raise BadValue("must be auto, bfloat16 or float16: others are not simulated")
    is_own = settings.model is None or settings.model.weight_dtype is None
    if flag.value in ("half", "float16") and is_own and key not in settings.keys:
        settings.set(flag, key, "fp16")
    else:
        settings.read(flag, "activations are computed in 16 bits")


def take_quantization(settings: ServerSettings, flag: Flag, key: str) -> None:
    """Take a method; the checkpoint knows better where it says its precision."""
    dtype = QUANTIZED.get(flag.value.replace("-", "_"))
    if settings.model is not None and settings.model.weight_dtype is not None:
        settings.read(flag, f"the checkpoint has {settings.model.weight_dtype}")
    elif dtype is None:
        remedy = "give the path of the model's config.json: its quantization_config says more"
        raise BadValue("does not tell the precision of the weights", remedy)
    else:
        settings.set(flag, key, dtype)


def take_kv_dtype(settings: ServerSettings, flag: Flag, key: str) -> None:
    """Take the dtype of the KV cache."""
    text = flag.value.lower()
    if text.startswith("fp8"):
        return settings.set(flag, key, "fp8")
    if text in ("auto", "bfloat16", "bf16", "float16", "fp16"):
        return settings.set(flag, key, "bf16")
    raise BadValue("must be auto, bfloat16 or fp8: others are not simulated")


def take_ranks(settings: ServerSettings, flag: Flag, key: str) -> None:
    """Ranks of a dense model, and of SGLang without attention ranks, are engines of their own."""
    n = whole(flag.value)
    if "enable-dp-attention" in settings.flags:
        return settings.read(flag, "ranks of attention: --enable-dp-attention")
    if settings.engine == "vllm" and settings.model is not None and settings.model.experts is not None:
        return settings.set(flag, key, n, "ranks share the experts")
    settings.replicas = n
    return settings.read(flag, "each rank is a replica with its own requests")


def take_attention_ranks(settings: ServerSettings, flag: Flag, key: str) -> None:
    """All GPUs of tensor parallelism are ranks of attention (TensorRT-LLM), or as many as SGLang's --dp says."""
    if flag.value.lower() == "false":
        return settings.set(flag, key, 1)
    tensor = settings.tensor
    ranks = settings.flags.get("data-parallel-size")
    n = tensor if ranks is None else whole(ranks.value)
    if tensor % n:
        raise BadValue(f"its {n} ranks must divide the {tensor} GPUs of --tp")
    settings.set(flag, key, n, f"{n} ranks of {tensor // n} GPUs each")
    settings.keys[f"{POOL}.parallel.tensor"] = tensor // n


def take_helix(settings: ServerSettings, flag: Flag, key: str) -> None:
    """Take the GPUs that divide a context besides those of attention's heads; together these divide all else."""
    n = whole(flag.value)
    settings.set(flag, key, n, f"{n} times the GPUs of --tp_size share all else")
    settings.keys[f"{POOL}.parallel.tensor"] = settings.tensor


def take_experts(settings: ServerSettings, flag: Flag, key: str) -> None:
    """Take the GPUs that distribute the experts."""
    n, n_gpus = whole(flag.value), settings.tensor
    if n not in (1, n_gpus):
        raise BadValue(f"must be 1 or all {n_gpus} GPUs: experts in groups are not simulated")
    settings.set(flag, key, n)


def take_experts_over_all(settings: ServerSettings, flag: Flag, key: str) -> None:
    """Distribute the experts over all GPUs of the replica."""
    if settings.model is None or settings.model.experts is None:
        return settings.note(flag.written, flag.value, "no effect", "the model has no experts")
    ranks = settings.flags.get("data-parallel-size")
    n = 1 if ranks is None or not ranks.value.isdecimal() else int(ranks.value)
    return settings.set(flag, key, settings.tensor * n, "all GPUs of the replica")


def take_pages(settings: ServerSettings, flag: Flag, key: str) -> None:
    """Turn tokens into pages."""
    page = settings.flags.get("page-size")
    settings.set(flag, key, max(1, whole(flag.value) // (1 if page is None else whole(page.value))))


def take_speculation(settings: ServerSettings, flag: Flag, key: str) -> None:
    """Take how tokens are proposed; no flag says how many are accepted."""
    spec = _proposals(settings, flag)
    kind = METHODS.get(str(spec.get("method", "draft_model")).lower())
    if kind is None:
        raise BadValue(f"must have a method of {', '.join(METHODS)}")
    if kind == "eagle" and not spec.get("model") and settings.model is not None and settings.model.n_mtp_layers:
        kind = "mtp"  # the layers of the model itself propose
    n = spec.get("num_speculative_tokens")
    value: dict[str, Any] = {"kind": kind, "tokens": int(n or PROPOSED), "acceptance": ACCEPTANCE}
    if kind == "draft_model":
        value["model"] = str(spec.get("model"))
    settings.set(flag, key, value)
    why = "no flag says it; give --metrics, a text of /metrics, or correct the scenario"
    settings.note(f"{key}.acceptance", ACCEPTANCE, "assumed", why)
    if n is None:
        settings.note(f"{key}.tokens", PROPOSED, "assumed", "the command does not say it")


def _proposals(settings: ServerSettings, flag: Flag) -> Mapping[str, Any]:
    """Return the speculation in vLLM's terms."""
    if settings.engine == "vllm":
        try:
            spec = json.loads(flag.value)
        except json.JSONDecodeError:
            spec = None
        match spec:
            case dict():
                return spec
        raise BadValue("must be a JSON object in quotes")
    other = {name.rpartition("speculative-")[2]: each.value for name, each in settings.flags.items()}
    steps = other.get("num-steps")
    return {"method": flag.value, "model": other.get("draft-model-path"), "num_speculative_tokens": steps}


def with_acceptance(settings: ServerSettings, key: str, rates: Sequence[float], source: str) -> None:
    """Set the share of accepted proposals of each position, given those before it, over what was assumed."""
    settings.keys[key] = {**settings.keys[key], "acceptance": list(rates)}
    settings.notes = [note for note in settings.notes if note.name != f"{key}.acceptance"]
    settings.note(source, ", ".join(f"{rate:.2f}" for rate in rates), "simulated", "accepted by position", key)


SWITCHES = ("on", "off", "experts_over_all", "attention_ranks")
"""Forms of flags without a value."""

FORMS: Mapping[str, Form] = {
    "model": take_model,
    "count": _plain(whole),
    "tokens": take_tokens,
    "share": take_share,
    "number": _plain(number),
    "text": _plain(str.lower),
    "on": _plain(lambda text: text.lower() != "false"),
    "off": _plain(lambda text: text.lower() == "false"),
    "none": _plain(lambda text: text.lower() in ("none", "null")),
    "dtype": take_dtype,
    "quantization": take_quantization,
    "kv_dtype": take_kv_dtype,
    "ranks": take_ranks,
    "attention_ranks": take_attention_ranks,
    "helix": take_helix,
    "experts": take_experts,
    "experts_over_all": take_experts_over_all,
    "pages": take_pages,
    "speculation": take_speculation,
    "part_of_speculation": lambda settings, flag, _: settings.read(flag, "part of the speculation"),
}
"""How the value of a flag becomes that of its key, by the forms of flags.yaml."""
