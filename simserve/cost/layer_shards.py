"""Layer shards: the part of a model on one GPU with the sizes of some of its layers."""

from dataclasses import replace

from simserve.catalog.layers import LayerGroup
from simserve.cost.shard import Shard


def whole_shards(shard: Shard) -> list[tuple[Shard, LayerGroup]]:
    """Return the model by group of the layers that attend the whole context, or entries of all of it."""
    groups = (group for group in shard.model.groups if group.attends and group.window is None)
    return [(shard.of(group), group) for group in groups]


def mlp_shards(shard: Shard) -> list[tuple[Shard, int]]:
    """Return the model by size of its plain MLPs, and how many layers have each."""
    sizes = shard.model.mlps or ((shard.model.intermediate_size, shard.model.n_dense_layers),)
    return [(sized(shard, size), n_layers) for size, n_layers in sizes]


def sized(shard: Shard, size: int) -> Shard:
    """Return the model with MLPs of an inner size; 0: with one square matrix, as some layers have for a mixer."""
    return replace(shard, model=replace(shard.model, intermediate_size=size, mlps=()))
