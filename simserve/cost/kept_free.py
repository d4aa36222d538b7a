"""Memory that an engine keeps free by its own rule, for activations and CUDA graphs, where nothing sets a share."""

from dataclasses import dataclass
from math import inf
from typing import Any

from simserve.catalog.engine_spec import EngineSpec
from simserve.catalog.specs import GpuSpec
from simserve.units import MIB

MANY_GPUS = 4
"""GPUs of a group from which on CUDA graphs hold more requests by default."""

LEAST_TOKENS = 2048
"""Tokens of a step that memory is kept for at the least."""

MANY_GRAPHS = 300
"""Requests of the largest graph beyond which each takes half as much again with data-parallel ranks."""

PIECEWISE_TOKENS = ((4, 32, 4), (48, 256, 16), (288, 512, 32), (640, 1024, 64), (1280, 4096, 256), (4608, 10**9, 512))
"""Sizes of captured steps with prompts: first, last and step of each range (SGLang, server_args.py)."""


@dataclass(frozen=True)
class ServerKnobs:
    """What the rule depends on besides the card."""

    step_tokens: int
    """Prompt tokens of a step."""
    n_gpus: int
    """GPUs of all ranks that step together, and of all stages."""
    n_ranks: int = 1
    """Data-parallel ranks that share experts."""
    drafts: str | None = None
    """The kind of speculation."""
    has_latent: bool = False
    """Whether its attention has latent vectors."""
    captures_prompts: bool = True
    """Whether CUDA graphs hold steps with prompts, where the engine has a rule for them."""


def memory_share(engine: EngineSpec, gpu: GpuSpec, server: ServerKnobs) -> float:
    """Return the share of memory for weights and KV cache, as SGLang rounds it."""
    total_mib = gpu.hbm_bytes / MIB
    return round((total_mib - kept_free_mib(engine, gpu, server)) / total_mib, 3)


def kept_free_mib(engine: EngineSpec, gpu: GpuSpec, server: ServerKnobs) -> float:
    """Return the MiB of each GPU that stay free: those of the first card that is large enough, with all that add to
    them."""
    rule = engine.kept_free_mib or {}
    card: dict[str, Any] = next(card for card in rule["cards"] if gpu.hbm_bytes / MIB < card.get("below", inf))
    graphs = card.get("graphs", (0, 0))[server.n_gpus >= MANY_GPUS]
    kept = card.get("constant", 0.0) + card.get("gpu", 0.0) * server.n_gpus
    kept += rule.get("token", 0.0) * max(server.step_tokens, LEAST_TOKENS) + rule.get("graph", 0.0) * graphs
    if server.n_ranks > 1:
        each = rule.get("rank_graph", 0.0) * (1.5 if graphs > MANY_GRAPHS else 1.0)
        kept += rule.get("ranks", 0.0) + each * graphs * server.n_ranks
    if "piecewise" in rule and server.captures_prompts:
        piecewise, n = rule["piecewise"], server.step_tokens
        n_sizes = sum(len(range(first, min(last, n) + 1, step)) for first, last, step in PIECEWISE_TOKENS)
        kept += piecewise["latent"] if server.has_latent else piecewise["size"] * n_sizes
    return float(max(kept, card.get("least", 0.0)) + rule["drafts"].get(server.drafts, 0.0))
