"""Model sizes: parameters of a model, the memory of its requests, and the cards that hold them."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from simserve import catalog
from simserve.cost.kv_groups import kv_layout
from simserve.cost.kv_layout import KvLayout
from simserve.cost.weights import parameters
from simserve.errors import ScenarioError, SimserveError
from simserve.scenario.experiment import FLOAT8
from simserve.scenario.parallel import Parallel, valid_tensors
from simserve.scenario.pool import Defaults
from simserve.scenario.scenario import Scenario

LENGTHS = (8192, 32_768)
"""Tokens of requests that models are compared by."""

FIXED = {"kind": "fixed", "prompt_tokens": 1, "output_tokens": 1}
LOAD = {"n_requests": 1, "arrivals": {"kind": "constant", "rate_per_s": 1}, "lengths": FIXED}
"""A load, on which no memory depends."""


@dataclass(frozen=True)
class KvGroupAnswer:
    """What the layers of one kind keep of a request, on one GPU; of a model alone, on a GPU with all of it."""

    kind: str
    """One of full, windowed, chunked, latent, state, and compressed with the tokens of an entry."""
    n_layers: int
    """Layers of the kind."""
    window: int | None
    """[tokens] Width of a window or chunk; null without one."""
    bytes_per_token: float
    """[bytes] Keys and values of a token in all of them."""
    bytes_per_request: float
    """[bytes] States of fixed size in all of them."""
    longest_bytes: float
    """[bytes] Most of a request of max_model_len; of a model alone, what one of the length holds between steps."""
    is_draft: bool = False
    """Whether they are the layers of a draft model."""


@dataclass(frozen=True)
class CardRoom:
    """The fewest GPUs of a card that hold a model and a request of the context, with the defaults of a scenario."""

    gpu: str
    """Card of the catalog."""
    weight_dtype: str
    """Dtype of the weights."""
    tensor: int | None = None
    """GPUs that share every layer; null: no degree of a node is enough, or the card lacks the dtype."""
    weights_bytes: float | None = None
    """[bytes] Weights of each GPU."""
    kv_bytes: float | None = None
    """[bytes] What remains on each for KV cache and states."""
    kv_tokens: int | None = None
    """[tokens] Length of the longest request that is held, whatever the model allows; null: any."""
    n_requests: int | None = None
    """Requests of the first length that are held at once, between steps."""
    n_longest: int | None = None
    """Requests of the last length that are held at once, between steps."""


@dataclass(frozen=True)
class ModelAnswer:
    """The answer about a model alone, without MTP layers and encoders, with the defaults of a scenario."""

    model: str
    """Name in the catalog, or of the file."""
    weight_dtype: str
    """Dtype of the checkpoint."""
    kv_dtype: str
    """Dtype of keys and values."""
    n_parameters: int
    """Parameters of all parts."""
    n_active: int
    """Parameters that a token meets, each time: not the embeddings, where it is looked up, nor experts of others."""
    parameters: dict[str, int]
    """Parameters by part; tied embeddings are the head's."""
    requests: dict[int, tuple[KvGroupAnswer, ...]]
    """What a request keeps, by its tokens; the last is as long as the context."""
    fits: tuple[CardRoom, ...]
    """All cards, each with the dtype of the checkpoint and others."""


def model_sizes(name: str, context: int | None = None) -> ModelAnswer:
    """Return the answer for requests of a context, by default the model's longest. Raises SimserveError."""
    model, defaults = catalog.load_model(name), Defaults(schema="simserve/1", model=name, gpu="")
    most = model.max_position_embeddings
    if not 1 <= (n_tokens := most if context is None else context) <= most:
        raise SimserveError(f"--context: must be from 1 to the {most} tokens of {name}, got {context}; leave it out")
    lengths = (*(n for n in LENGTHS if n < n_tokens), n_tokens)
    dtype = model.weight_dtype or defaults.weight_dtype
    shard = Parallel().shard(model, dtype, defaults.kv_dtype)
    layout = kv_layout(shard, catalog.load_engine(defaults.engine.name).block_size, 1, n_tokens)
    parts, n_active = vars(parameters(shard)), sum(vars(parameters(shard, is_active=True)).values())
    others = () if model.weight_dtype and name not in catalog.names("models") else ("bf16", "fp8")
    dtypes = dict.fromkeys((dtype, *(each for each in others if not {each, dtype} <= FLOAT8)))
    requests = {n: tuple(kv_groups(layout, n)) for n in lengths}
    fits = tuple(_fit(name, gpu, each, lengths) for gpu in catalog.names("gpus") for each in dtypes)
    return ModelAnswer(model.name, dtype, defaults.kv_dtype, sum(parts.values()), n_active, parts, requests, fits)


def kv_groups(layout: KvLayout, n_tokens: int) -> Iterator[KvGroupAnswer]:
    """Yield what each kind of layer keeps of a request."""
    for part in layout.parts:
        group, sizes = part.group, (part.bytes_per_token, part.bytes_per_request, part.most_bytes(n_tokens))
        kind = f"{group.kind} {group.ratio}" if group.has_entries else group.kind
        yield KvGroupAnswer(kind, group.n_layers, group.window, *sizes, part.is_draft)


def _fit(name: str, gpu: str, dtype: str, lengths: Sequence[int]) -> CardRoom:
    keys = {"schema": "simserve/1", "model": name, "gpu": gpu, "weight_dtype": dtype, "workload": LOAD}
    for tensor in valid_tensors(catalog.load_model(name), catalog.load_gpu(gpu)):
        pool = {"parallel": {"tensor": tensor}, "max_model_len": lengths[-1], "calibration": "none"}
        with suppress(ScenarioError):  # the model does not fit, or the card lacks the dtype
            kv = Scenario.from_dict({**keys, "cluster": {"pools": [pool]}}).setups[0].ledger
            first, last = (kv.lane_blocks // kv.layout.blocks.held(n) for n in (lengths[0], lengths[-1]))
            return CardRoom(gpu, dtype, tensor, kv.weights_bytes, kv.kv_bytes, kv.longest_tokens, first, last)
    return CardRoom(gpu, dtype)
