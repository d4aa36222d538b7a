"""The calls of PyTorch that compute a shape, each on inputs of its own."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from simserve.catalog.dtypes import BYTES_PER_VALUE
from simserve.lab.kernels.shapes import Shape

Calls = list[partial[Any]]
"""One computation on several inputs."""

MOST_CALLS = 256
"""Most copies of the inputs: more bytes than a cache holds, unless they are tiny."""


def kernel_of(shape: Shape, device: str, cold_bytes: float) -> tuple[str, Calls]:
    """Return the name of the kernel and calls with inputs of `cold_bytes` together, if not one is as large. Values are
    normal: a card draws less power, and clocks higher, on zeros."""
    return MAKERS[shape["op"]](shape, device, cold_bytes)


def _gemm(shape: Shape, device: str, cold_bytes: float) -> tuple[str, Calls]:
    """Multiply by one of several weights; fp8 casts its activations first, in one pass as fused kernels do."""
    import torch

    m, n, k = shape["m"], shape["n"], shape["k"]
    x = torch.randn(m, k, dtype=torch.bfloat16, device=device)
    copies = range(_n_copies(n * k * BYTES_PER_VALUE[shape["dtype"]], cold_bytes))
    weights = [torch.randn(n, k, dtype=torch.bfloat16, device=device) for _ in copies]
    if shape["dtype"] == "bf16":
        return "torch linear", [partial(torch.nn.functional.linear, x, w) for w in weights]
    scale, fp8 = torch.ones((), device=device), torch.float8_e4m3fn
    stored = [w.to(fp8).t() for w in weights]

    def product(w: Any) -> Any:
        return torch._scaled_mm(x.to(fp8), w, scale_a=scale, scale_b=scale, out_dtype=x.dtype, use_fast_accum=True)

    return "torch scaled_mm", [partial(product, w) for w in stored]


def _prefill(shape: Shape, device: str, cold_bytes: float) -> tuple[str, Calls]:
    """Attend whole prompts, and write their keys and values to a cache, as engines do."""
    name, attend = _attention(device)
    q, new = _queries(shape, shape["tokens"], device), _keys(shape, shape["tokens"], device)
    caches = [new.clone() for _ in range(_n_copies(new.nbytes, cold_bytes))]

    def call(cache: Any) -> Any:
        cache.copy_(new)
        return attend(q, cache[0], cache[1], True)

    return name, [partial(call, cache) for cache in caches]


def _decode(shape: Shape, device: str, cold_bytes: float) -> tuple[str, Calls]:
    """Attend the keys of a cache with one query per request, after writing the last key and value."""
    name, attend = _attention(device)
    q, new = _queries(shape, 1, device), _keys(shape, 1, device)
    cache = _keys(shape, shape["tokens"], device)
    caches = [cache, *(cache.clone() for _ in range(_n_copies(cache.nbytes, cold_bytes) - 1))]

    def call(cache: Any) -> Any:
        cache[:, :, -1:].copy_(new)
        return attend(q, cache[0], cache[1], False)

    return name, [partial(call, cache) for cache in caches]


def _queries(shape: Shape, n_tokens: int, device: str) -> Any:
    import torch

    size = (shape["batch"], n_tokens, shape["n_heads"], shape["head_dim"])
    return torch.randn(size, dtype=torch.bfloat16, device=device)


def _keys(shape: Shape, n_tokens: int, device: str) -> Any:
    """Return keys and values, `(2, batch, tokens, heads, width)`."""
    import torch

    size = (2, shape["batch"], n_tokens, shape["n_kv_heads"], shape["head_dim"])
    return torch.randn(size, dtype=torch.bfloat16, device=device)


def _attention(device: str) -> tuple[str, Callable[[Any, Any, Any, bool], Any]]:
    """Return attention of (queries, keys, values, is_causal), each `(batch, tokens, heads, width)`, as the fastest
    library at hand computes it."""
    for module in ("flash_attn_interface", "flash_attn") if device.startswith("cuda") else ():
        if find_spec(module) is not None:
            return _flash(module)
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fused = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]

    def attend(q: Any, keys: Any, values: Any, is_causal: bool) -> Any:
        parts = (each.transpose(1, 2) for each in (q, keys, values))
        grouped = q.shape[2] != keys.shape[2]
        with sdpa_kernel(fused):
            return torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=is_causal, enable_gqa=grouped)

    return "torch sdpa", attend


def _flash(module: str) -> tuple[str, Callable[[Any, Any, Any, bool], Any]]:
    """Return attention of FlashAttention 3 (flash_attn_interface) or 2; decode splits the keys over the SMs."""
    from importlib import import_module

    library = import_module(module)

    def attend(q: Any, keys: Any, values: Any, is_causal: bool) -> Any:
        whole = library.flash_attn_func if q.shape[1] > 1 else library.flash_attn_with_kvcache
        return whole(q, keys, values, causal=is_causal)

    return module, attend


def _copy(shape: Shape, device: str, cold_bytes: float) -> tuple[str, Calls]:
    """Copy between the card and pinned memory of the host."""
    import torch

    copies = range(_n_copies(shape["bytes"], cold_bytes))
    pinned = device.startswith("cuda")
    here = [torch.randint(0, 255, (shape["bytes"],), dtype=torch.uint8, device=device) for _ in copies]
    there = [torch.zeros(shape["bytes"], dtype=torch.uint8, pin_memory=pinned) for _ in copies]
    pairs = zip(here, there, strict=True) if shape["direction"] == "to_device" else zip(there, here, strict=True)
    return "memcpy", [partial(to.copy_, origin, non_blocking=True) for to, origin in pairs]


def _collective(shape: Shape, device: str, cold_bytes: float) -> tuple[str, Calls]:
    """Communicate in the default process group, of which every process makes these calls."""
    import torch
    from torch import distributed

    n_gpus, numbers = shape["n_gpus"], max(shape["n_gpus"], int(shape["bytes"] / 2))
    whole = torch.randn(numbers // n_gpus * n_gpus, dtype=torch.bfloat16, device=device)
    share, result = whole[: numbers // n_gpus].clone(), torch.empty_like(whole)
    names, tensors = {
        "all_reduce": (("all_reduce",), (whole,)),
        "all_gather": (("all_gather_single", "all_gather_into_tensor"), (result, share)),  # the first is the newer name
        "reduce_scatter": (("reduce_scatter_single", "reduce_scatter_tensor"), (share, whole)),
        "all_to_all": (("all_to_all_single",), (result, whole)),
    }[shape["op"]]
    call = next(getattr(distributed, name) for name in names if hasattr(distributed, name))
    return str(distributed.get_backend()), [partial(call, *tensors)]


def _n_copies(n_bytes: float, cold_bytes: float) -> int:
    return max(1, min(MOST_CALLS, round(cold_bytes / n_bytes + 0.5)))


MAKERS: Mapping[str, Callable[[Shape, str, float], tuple[str, Calls]]] = {
    "gemm": _gemm,
    "prefill_attention": _prefill,
    "decode_attention": _decode,
    "host_copy": _copy,
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "all_to_all"), _collective),
}
