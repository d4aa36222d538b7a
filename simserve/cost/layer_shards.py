"""Layer shards: the part of a model on one GPU with the sizes of some of its layers."""

from dataclasses import replace

from simserve.cost.shard import Shard

SizedShards = list[tuple[Shard, int]]
"""Models with the sizes of some layers in all of them, and how many these are."""


def whole_shards(shard: Shard) -> SizedShards:
    """Return the model by heads of the layers that attend the whole context."""
    groups = (group for group in shard.model.groups if group.attends and group.window is None)
    return [(shard.of(group), group.n_layers) for group in groups]


def mlp_shards(shard: Shard) -> SizedShards:
    """Return the model by size of its plain MLPs."""
    sizes = shard.model.mlps or ((shard.model.intermediate_size, shard.model.n_dense_layers),)
    return [(sized(shard, size), n_layers) for size, n_layers in sizes]


def sized(shard: Shard, size: int) -> Shard:
    """Return the model with MLPs of an inner size; 0: with one square matrix, as some layers have for a mixer."""
    return replace(shard, model=replace(shard.model, intermediate_size=size, mlps=()))
