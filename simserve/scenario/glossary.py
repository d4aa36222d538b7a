"""Glossary: the keys of a scenario, and those of engines, their benchmarks and controllers, mapped to them."""

import difflib
import inspect
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, get_args

from simserve.catalog.types import Section
from simserve.plugins.validation import Path
from simserve.scenario.cluster import ClusterSection
from simserve.scenario.experiment import Experiment, Slo, Targets
from simserve.scenario.manifest_hpa import HPA_KEYS
from simserve.scenario.manifest_keda import KEDA_KEYS
from simserve.scenario.manifest_kinds import KIND_KEYS
from simserve.scenario.manifest_knative import KNATIVE_KEYS
from simserve.scenario.manifest_kserve import KSERVE_KEYS
from simserve.scenario.manifest_ray import RAY_KEYS
from simserve.scenario.parallel import Parallel
from simserve.scenario.pool import Pool, Views
from simserve.scenario.trace_file import TraceFile
from simserve.scenario.workload import MeasureSection, Workload

POOL = "cluster.pools.0"

NEIGHBORS = MappingProxyType(
    {
        # engines: parallelism
        "tensor_parallel_size": f"{POOL}.parallel.tensor",
        "tensor_parallel": f"{POOL}.parallel.tensor",
        "tp_size": f"{POOL}.parallel.tensor",
        "tp": f"{POOL}.parallel.tensor",
        "no_enable_prefix_caching": f"{POOL}.enable_prefix_caching",
        "disable_radix_cache": f"{POOL}.enable_prefix_caching",
        "async_scheduling": "engine.async_scheduling",
        **dict.fromkeys(("enforce_eager", "disable_cuda_graph"), "engine.enforce_eager"),
        "enable_block_reuse": f"{POOL}.enable_prefix_caching",
        "pipeline_parallel_size": f"{POOL}.parallel.pipeline",
        "pp_size": f"{POOL}.parallel.pipeline",
        "pp": f"{POOL}.parallel.pipeline",
        "data_parallel_size": f"{POOL}.parallel.data",
        "dp_size": f"{POOL}.parallel.data",
        "dp": f"{POOL}.parallel.data",
        "enable_expert_parallel": f"{POOL}.parallel.expert",
        "expert_parallel_size": f"{POOL}.parallel.expert",
        "ep_size": f"{POOL}.parallel.expert",
        "decode_context_parallel_size": f"{POOL}.parallel.decode_context",
        "prefill_context_parallel_size": f"{POOL}.parallel.prefill_context",
        "num_replicas": f"{POOL}.replicas",
        # engines: memory
        "kv_cache_dtype": "kv_dtype",
        "cache_dtype": "kv_dtype",
        "dtype": "weight_dtype",
        "torch_dtype": "weight_dtype",
        "quantization": "weight_dtype",
        "quantization_config": "weight_dtype",
        "quant_algo": "weight_dtype",
        "swap_space": f"{POOL}.host_tier.bytes",
        "preemption_mode": f"{POOL}.host_tier.preemption",
        "kv_offloading_size": f"{POOL}.host_tier.bytes",
        "hicache_size": f"{POOL}.host_tier.bytes",
        "enable_hierarchical_cache": f"{POOL}.host_tier",
        "host_cache_size": f"{POOL}.host_tier.bytes",
        "num_gpu_blocks_override": f"{POOL}.num_gpu_blocks",
        "mem_fraction_static": f"{POOL}.gpu_memory_utilization",
        "free_gpu_memory_fraction": f"{POOL}.gpu_memory_utilization",
        "kv_cache_free_gpu_mem_fraction": f"{POOL}.gpu_memory_utilization",
        "page_size": f"{POOL}.block_size",
        "tokens_per_block": f"{POOL}.block_size",
        "context_length": f"{POOL}.max_model_len",
        "max_seq_len": f"{POOL}.max_model_len",
        "max_context_len": f"{POOL}.max_model_len",
        "max_position_embeddings": f"{POOL}.max_model_len",
        # engines: scheduling
        "max_num_seqs": f"{POOL}.scheduler.max_num_seqs",
        "max_batch_size": f"{POOL}.scheduler.max_num_seqs",
        "max_running_requests": f"{POOL}.scheduler.max_num_seqs",
        "max_num_batched_tokens": f"{POOL}.scheduler.max_num_batched_tokens",
        "max_num_tokens": f"{POOL}.scheduler.max_num_batched_tokens",
        "max_prefill_tokens": f"{POOL}.scheduler.max_num_batched_tokens",
        "chunked_prefill_size": f"{POOL}.scheduler.max_num_batched_tokens",
        "chunk_size": f"{POOL}.scheduler.max_num_batched_tokens",
        "long_prefill_token_threshold": f"{POOL}.scheduler.long_prefill_token_threshold",
        "scheduler_reserve_full_isl": f"{POOL}.scheduler.scheduler_reserve_full_isl",
        "batch_size": f"{POOL}.scheduler.batch_size",
        "window_s": f"{POOL}.scheduler.window_s",
        "policy": f"{POOL}.scheduler",
        "scheduling_policy": f"{POOL}.scheduler",
        # engines: speculation
        "num_speculative_tokens": f"{POOL}.speculation.tokens",
        "speculative_num_steps": f"{POOL}.speculation.tokens",
        "speculative_num_draft_tokens": f"{POOL}.speculation.tokens, one less",
        "max_draft_len": f"{POOL}.speculation.tokens",
        "method": f"{POOL}.speculation.kind",
        "speculative_algorithm": f"{POOL}.speculation.kind",
        "decoding_type": f"{POOL}.speculation.kind",
        "speculative_model": f"{POOL}.speculation.model",
        "draft_model": f"{POOL}.speculation.model",
        "speculative_draft_model_path": f"{POOL}.speculation.model",
        "acceptance_rate": f"{POOL}.speculation.acceptance",
        "speculative_config": f"{POOL}.speculation",
        # routing
        "routing_policy": "cluster.router",
        "routing_logic": "cluster.router",
        "load_balancer": "cluster.router",
        "refresh_metrics_interval": "cluster.views.refresh_s",
        "engine_stats_interval": "cluster.views.refresh_s",
        # clients and gateways
        "max_retries": "workload.retries.max_attempts, the first included",
        "percent_can_retry": "workload.retries.budget_frac",
        "request_timeout": "workload.timeout.e2e_s",
        "timeout_s": "workload.timeout.e2e_s",
        # benchmarks
        "request_rate": "workload.arrivals.rate_per_s",
        "rate_per_s": "workload.arrivals.rate_per_s",
        "rate": "workload.arrivals.rate_per_s",
        "qps": "workload.arrivals.rate_per_s",
        "rps": "workload.arrivals.rate_per_s",
        "burstiness": "workload.arrivals.burstiness",
        "max_concurrency": "workload.client.concurrency",
        "concurrency": "workload.client.concurrency",
        "num_prompts": "workload.n_requests",
        "num_requests": "workload.n_requests",
        "duration": "workload.duration_s",
        "max_output_len": "workload.max_tokens",
        "random_input_len": "workload.lengths.prompt_tokens",
        "input_len": "workload.lengths.prompt_tokens",
        "input_tokens": "workload.lengths.prompt_tokens",
        "isl": "workload.lengths.prompt_tokens",
        "random_output_len": "workload.lengths.output_tokens",
        "output_len": "workload.lengths.output_tokens",
        "osl": "workload.lengths.output_tokens",
        "prefix_repetition_prefix_len": "workload.prefixes.prefix_tokens",
        "prefix_len": "workload.prefixes.prefix_tokens",
        "random_prefix_len": "workload.prefixes.prefix_tokens",
        "gsp_system_prompt_len": "workload.prefixes.prefix_tokens",
        "prefix_repetition_num_prefixes": "workload.prefixes.n_prefixes",
        "num_prefixes": "workload.prefixes.n_prefixes",
        "gsp_num_groups": "workload.prefixes.n_prefixes",
        "prefix_repetition_suffix_len": "workload.lengths.prompt_tokens",
        "gsp_question_len": "workload.lengths.prompt_tokens",
        "gsp_output_len": "workload.lengths.output_tokens",
        "dataset": "workload.trace.path",
        "dataset_path": "workload.trace.path",
        "timed_trace": "workload.trace.path",
        "num_warmups": "measure.warmup_requests",
        "warmup": "measure.warmup_s",
        "goodput": "slo",
        "ttft": "slo.ttft_s, in seconds",
        "ttft_ms": "slo.ttft_s, in seconds",
        "tpot": "slo.tpot_s, in seconds",
        "tpot_ms": "slo.tpot_s, in seconds",
        "itl": "slo.itl_s, in seconds",
        "itl_ms": "slo.itl_s, in seconds",
        "e2el": "slo.e2e_s, in seconds",
        "e2el_ms": "slo.e2e_s, in seconds",
        "e2e": "slo.e2e_s, in seconds",
        # the rest
        "model_name": "model",
        "model_path": "model",
        "served_model_name": "model",
        "device": "gpu",
        "gpu_type": "gpu",
        "hardware": "gpu",
        "random_seed": "seed",
    }
    | {**KIND_KEYS, **HPA_KEYS, **KEDA_KEYS, **KNATIVE_KEYS, **KSERVE_KEYS, **RAY_KEYS}
)
"""A neighbor's key (with underscores) -> ours; `[]` stands for the index of a pool."""

SENTENCES = MappingProxyType(
    {
        "enable_chunked_prefill": f"with it the {POOL}.scheduler is chunked, without it prefill_first",
        "max_queued_requests": "give cluster.admission: {kind: queue_length, max_waiting: ...}",
        "num_gpus": f"GPUs are {POOL}.replicas times {POOL}.parallel.tensor",
        "prompt_lookup_max": f"the hit rate of n-grams is {POOL}.speculation.acceptance",
        "prompt_lookup_min": f"the hit rate of n-grams is {POOL}.speculation.acceptance",
        **dict.fromkeys(("detect_s", "recover"), "leave it out, as slow replicas and links are not detected"),
        "draft_tensor_parallel_size": "a draft model is sharded as its target is",
        "num_nextn_predict_layers": f"the model has it; use {POOL}.speculation: {{kind: mtp, ...}}",
        "layer_types": "layers are the model's; give its config.json as model",
        "sliding_window": "windows are the model's; give its config.json as model",
        "attention_chunk_size": "chunks are the model's; give its config.json as model",
        "full_attention_interval": "layers are the model's; give its config.json as model",
        "speculative_eagle_topk": "proposals are a chain, as with topk 1",
    }
)
"""Keys that have no single counterpart."""


def remedy_for_unknown(path: Path) -> str | None:
    """Return the remedy for an unknown key that a neighbor uses or that belongs elsewhere; None for other keys."""
    key = str(path[-1]).rpartition("/")[2].lower().replace("-", "_").lstrip("_")
    if key in SENTENCES:
        return SENTENCES[key]
    ours = NEIGHBORS.get(key) or _places_of_keys().get(key)
    in_first_pool = ".".join("0" if isinstance(item, int) else item for item in path)
    if ours is None or ours.split(",")[0] == in_first_pool:
        return None
    return f"use {ours.replace('scale_down', 'scale_up') if 'scale_up' in path else ours}"


def nearest_place(key: str) -> str | None:
    """Return the only place of a key that is almost spelled so; None if there is none."""
    near = difflib.get_close_matches(key, _places_of_keys(), n=1, cutoff=0.8)
    return _places_of_keys()[near[0]] if near else None


def known_keys(path: Path, data: Any) -> list[str]:
    """List the keys of the mapping at a path; `data` tells the forms of an SLO and the kinds of failures apart."""
    parts: list[type[Section]] = [Experiment]
    for item in path:
        data = data[item]
        fields = [part.model_fields.get(str(item)) for part in parts]
        parts = [section for field in fields if field for section in _sections_in(field.annotation)] or parts
    kinds = {part: get_args(part.model_fields["what"].annotation) for part in parts if "what" in part.model_fields}
    part = next((part for part in parts if data.get("what") in kinds.get(part, ())), parts[0])
    if part is Slo and not data.keys() & Slo.model_fields.keys():
        part = Targets
    return [field.alias or key for key, field in part.model_fields.items()]


@cache
def _places_of_keys() -> Mapping[str, str]:
    """Map each key with a single place to that place: `replicas` -> `cluster.pools.0.replicas`."""
    parts: dict[str, type[Section]] = {
        "": Experiment,
        "cluster.": ClusterSection,
        "cluster.views.": Views,
        "cluster.pools.0.": Pool,
        "cluster.pools.0.parallel.": Parallel,
        "workload.": Workload,
        "workload.trace.": TraceFile,
        "measure.": MeasureSection,
        "slo.": Targets,
    }
    places: dict[str, list[str]] = {}
    for prefix, part in parts.items():
        for key, field in part.model_fields.items():
            places.setdefault(key, []).append(prefix + (field.alias or key))
    return {key: homes[0] for key, homes in places.items() if len(homes) == 1}


def _sections_in(annotation: Any) -> list[type[Section]]:
    """Return the models inside `Engine | None`, `tuple[Pool, ...]` or `dict[str, Targets]`."""
    if inspect.isclass(annotation) and issubclass(annotation, Section):
        return [annotation]
    return [section for inner in get_args(annotation) for section in _sections_in(inner)]
