"""The catalog: models, GPUs and engines, one YAML file each, every number with its source."""

from simserve.catalog.load import default_version, describe, gpu_name, load_engine, load_gpu, load_model, names

__all__ = ["default_version", "describe", "gpu_name", "load_engine", "load_gpu", "load_model", "names"]
