"""The parallel section: how a replica is split over GPUs, the links between them, and what splits evenly."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from simserve.catalog.layers import UNIFORM_ROUTING
from simserve.catalog.specs import GpuSpec, LinkTopology, ModelSpec
from simserve.catalog.types import Count, Section
from simserve.cost.comm import NIC_LATENCY_S, NodeLink
from simserve.cost.exchange import ExchangeKernels
from simserve.cost.kernels import n_copies
from simserve.cost.shard import Shard
from simserve.scenario.draft import Draft

EXCHANGES: Mapping[str, ExchangeKernels] = {"prefill": "normal", "decode": "low_latency", "both": "by_batch"}
"""Kernels between nodes by the role of a pool (SGLang, --deepep-mode: normal for prefill, low_latency for decode)."""

MOST_RANKS = 10_000
"""Limit on the schedulers of a pool; a hundred times the largest published fleet, and seconds to set up."""


class NodeLinkSection(Section):
    """The link of each GPU to GPUs of other nodes."""

    bytes_per_s: Annotated[float, Field(ge=1e8, le=1e13)]
    """[bytes/s] Bandwidth of a GPU, one direction; at least that of 1 Gb/s Ethernet."""
    latency_s: Annotated[float, Field(ge=0, le=1)] = NIC_LATENCY_S
    """[s] Latency of a small message; by default that of a library call over RDMA."""


class BalanceSection(Section):
    """Data-parallel ranks that hold prompts back until each has one (TensorRT-LLM, `attention_dp_config`)."""

    timeout_iters: Count = 50
    """Steps until prompts run although some rank has none."""
    batching_wait_iters: Annotated[int, Field(ge=0)] = 10
    """Steps for which prompts wait for more although each rank has one."""


class Parallel(Section):
    """The split of one replica over tensor × pipeline × data × prefill_context GPUs, which fill nodes one after
    another."""

    tensor: Count = 1
    """GPUs that share every layer (vLLM and SGLang `--tensor-parallel-size`, TensorRT-LLM `tp_size`)."""
    pipeline: Count = 1
    """Pipeline stages (vLLM and SGLang `--pipeline-parallel-size`, TensorRT-LLM `pp_size`)."""
    data: Count = 1
    """Data-parallel ranks, each with its own requests; those of an MoE model share the experts and step together (vLLM
    and SGLang `--data-parallel-size`, `--enable-dp-attention`)."""
    expert: Count = 1
    """Parts into which GPUs divide the experts: 1 gives each GPU a slice of every expert, tensor × data whole experts
    (vLLM `--enable-expert-parallel`, SGLang `--ep-size`, TensorRT-LLM `ep_size`)."""
    decode_context: Count = 1
    """GPUs of the tensor-parallel group that divide a context's tokens, where each would hold a copy of the same keys
    (vLLM `--decode-context-parallel-size`, SGLang `--dcp-size`; TensorRT-LLM with Helix: `cp_size`, and `tensor` is all
    GPUs)."""
    prefill_context: Count = 1
    """Groups of GPUs that divide a prompt's tokens; each holds all weights, experts and keys, and decodes the same
    tokens (vLLM `--prefill-context-parallel-size`)."""
    link_topology: LinkTopology | None = None
    """How GPUs of a node on PCIe reach each other: `switch` (peer access) or `host`; null: as the card."""
    node_link: NodeLinkSection | None = None
    """Link of each GPU to GPUs of other nodes; null: the card's network adapter."""
    exchange: Literal["deepep", "gather", "all_to_all"] | None = None
    """What moves tokens to experts on other nodes: DeepEP's kernels (`deepep`) or NCCL's collectives (`gather`); null:
    `deepep`. In one node, all ranks gather all tokens but with `all_to_all` (TensorRT-LLM on GB200 and GB300)."""
    balance: BalanceSection | None = None
    """Ranks that step together hold prompts back until each has one; null: no prompt waits for other ranks."""

    @property
    def n_gpus(self) -> int:
        """GPUs of a replica."""
        return self.gpus_per_lane * self.data

    @property
    def gpus_per_lane(self) -> int:
        """GPUs that hold parts of a block."""
        return self.tensor * self.pipeline * self.prefill_context

    def n_sharing(self, model: ModelSpec) -> int:
        """Return how many of the data-parallel ranks share experts and step together; 1 for a dense model."""
        return 1 if model.experts is None else self.data

    def shard(self, model: ModelSpec, weight_dtype: str, kv_dtype: str, routing: str = UNIFORM_ROUTING) -> Shard:
        """Return the part of a model on a GPU."""
        parts = self.tensor, self.expert, self.n_sharing(model), routing, self.decode_context, self.prefill_context
        return Shard(model, weight_dtype, kv_dtype, *parts)

    def links_of(self, gpu: GpuSpec) -> GpuSpec:
        """Return a card with the links of these nodes."""
        return replace(gpu, link_topology=self.link_topology or gpu.link_topology)

    def link_between_nodes(self, gpu: GpuSpec) -> NodeLink:
        """Return the link between nodes: that of the section, else the card's network adapter."""
        own = self.node_link
        return NodeLink(gpu.nic_bytes_per_s) if own is None else NodeLink(own.bytes_per_s, own.latency_s)

    def exchange_kernels(self, role: str) -> ExchangeKernels:
        """Return what moves tokens to experts on other nodes: collectives, or DeepEP's kernels for a pool's role."""
        return self.exchange if self.exchange in ("gather", "all_to_all") else EXCHANGES[role]


def check_parallel(draft: Draft, parallel: Parallel, model: ModelSpec, gpu: GpuSpec, *, n_replicas: int) -> None:
    """Check that heads and layers of a pool's model divide evenly, and that GPUs which communicate in every layer fill
    their nodes."""
    _check_tensor(draft, parallel.tensor, model, gpu)
    _check_context(draft, parallel, model, gpu)
    n_ranks = n_replicas * parallel.pipeline * parallel.data
    if n_ranks > MOST_RANKS:
        key = ("replicas",) if n_replicas > parallel.data else ("parallel", "data")
        rule = f"a pool may have at most {MOST_RANKS:,} schedulers (replicas × data × pipeline)"
        draft.problem(key, rule, n_ranks, "simulate a part of the fleet under its share of the load")
    if parallel.pipeline > model.n_layers:
        rule = f"must be at most the {model.n_layers} layers of {model.name}"
        draft.problem(("parallel", "pipeline"), rule, parallel.pipeline)
    if model.experts is None or parallel.data == 1:
        return
    n_gpus, here = parallel.tensor * parallel.data, ("parallel", "data")
    if n_gpus > gpu.gpus_per_node and n_gpus % gpu.gpus_per_node:
        rule = f"ranks that share experts fill one node or several, {gpu.gpus_per_node} GPUs each with parallel.tensor"
        draft.problem(here, f"{rule}: tokens cross to the same place of another node", parallel.data)
    elif n_gpus > gpu.gpus_per_node and gpu.link_topology == "host":
        rule = "ranks that share experts over several nodes write to each other's memory, which needs peer access"
        draft.problem(here, rule, parallel.data, f"use at most {max(1, gpu.gpus_per_node // parallel.tensor)}")
    elif n_gpus > gpu.gpus_per_node and parallel.expert != n_gpus:
        rule = f"must be parallel.tensor times parallel.data, {n_gpus}, over several nodes"
        why = "of an expert divided between them every token would need all parts"
        draft.problem(("parallel", "expert"), f"{rule}: {why}", parallel.expert, f"use {n_gpus}")


def _check_tensor(draft: Draft, tensor: int, model: ModelSpec, gpu: GpuSpec) -> None:
    at, remedy = ("parallel", "tensor"), f"try {either(valid_tensors(model, gpu))}"
    heads = next((each for each in model.all_heads if not each.divides(tensor)), model.all_heads[0])
    of = ("attention heads", "KV heads") if model.n_attention_layers else ("heads of states", "groups of these")
    if heads.n_heads % tensor:
        draft.problem(at, f"must divide the model's {heads.n_heads} {of[0]}", tensor, remedy)
    elif not heads.divides(tensor):
        draft.problem(at, f"must divide the model's {heads.n_kv_heads} {of[1]}, or be a multiple", tensor, remedy)
    elif tensor > gpu.gpus_per_node and tensor % gpu.gpus_per_node:
        rule = f"must be at most the {gpu.gpus_per_node} GPUs of a node, or fill several"
        draft.problem(at, f"{rule}: a GPU sums with those at its place of the other nodes", tensor, remedy)


def _check_context(draft: Draft, parallel: Parallel, model: ModelSpec, gpu: GpuSpec) -> None:
    """Check that GPUs which divide a context hold the same keys, and that groups which divide prompts fill nodes."""
    n_held, tensor = n_copies(model, parallel.tensor), parallel.tensor
    here, n_near = ("parallel", "decode_context"), gpu.gpus_per_node
    if parallel.decode_context > 1 and not model.n_attention_layers:
        rule = f"divides keys and values by token, and {model.name} keeps states alone"
        draft.problem(here, rule, parallel.decode_context, "leave it out")
    elif n_held % parallel.decode_context:
        n_heads = sorted({each.n_kv_heads for each in model.all_heads})
        what = "latent vectors" if model.mla else f"{' and '.join(map(str, n_heads))} KV heads"
        rule = f"must divide {n_held}, the GPUs with copies of the same keys ({what} over parallel.tensor {tensor})"
        degrees = [n for n in range(1, n_held + 1) if n_held % n == 0]
        remedy = f"use {either(degrees)}" if n_held > 1 else "leave it out, or use more GPUs in tensor than KV heads"
        draft.problem(here, f"{rule}: GPUs with other keys have no tokens to divide", parallel.decode_context, remedy)
    n_gpus = tensor * parallel.n_sharing(model) * parallel.prefill_context
    if parallel.prefill_context > 1 and n_gpus > n_near and n_gpus % n_near:
        rule = f"groups fill one node or several, {n_near} GPUs each: keys cross to the same place of another node"
        draft.problem(("parallel", "prefill_context"), rule, parallel.prefill_context)


def valid_tensors(model: ModelSpec, gpu: GpuSpec) -> list[int]:
    """Return the tensor-parallel degrees that split this model evenly inside a node."""
    degrees = range(1, gpu.gpus_per_node + 1)
    return [n for n in degrees if all(heads.divides(n) for heads in model.all_heads)]


def resolve_experts(draft: Draft, parallel: Parallel, model: ModelSpec, routing: str | None) -> str | None:
    """Return the expert routing, given or the model's; report a parallelism that is not of whole experts."""
    here = ("parallel", "expert")
    if parallel.balance is not None and (model.experts is None or parallel.data == 1):
        rule = "is for data-parallel ranks that step together, and this pool has none"
        remedy = "leave it out, or set parallel.data of a model with experts"
        draft.problem(("parallel", "balance"), rule, None, remedy)
    if model.experts is None:
        if parallel.expert > 1:
            draft.problem(here, f"{model.name} has no experts", parallel.expert, "leave it out")
        if routing is not None:
            draft.problem(("expert_routing",), f"{model.name} has no experts", routing, "leave it out")
        return routing
    n_gpus = parallel.tensor * parallel.data
    if n_gpus % parallel.expert:
        product = "parallel.tensor" if parallel.data == 1 else "parallel.tensor times parallel.data"
        rule = f"must divide {product}, {n_gpus}: the GPUs of a replica share the experts"
        draft.problem(here, rule, parallel.expert, f"use 1 or {n_gpus}")
    if routing is None:
        routing = model.expert_routing
        draft.set_origin(("expert_routing",), f"model {model.name}")
    return routing


def either(items: list[int] | list[str]) -> str:
    """Format a list as "1, 2 or 4"."""
    *most, last = map(str, items)
    return f"{', '.join(most)} or {last}" if most else last
