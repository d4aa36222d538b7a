"""Models by their ids on the Hugging Face hub: those of the catalog's shapes, and those in the local cache."""

import os
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import yaml

PRECISIONS = {
    **dict.fromkeys(("fp8", "fp8-dynamic"), "fp8"),
    "fp8-block": "fp8_block",
    **dict.fromkeys(("nvfp4", "fp4"), "nvfp4"),
    **dict.fromkeys(("awq", "awq-int4", "gptq-int4", "int4", "quantized.w4a16"), "int4"),
    **dict.fromkeys(("gptq-int8", "quantized.w8a16"), "int8"),
    "quantized.w8a8": "w8a8",
}
"""Ends of the names of checkpoints in other precisions, as their publishers name them, and the precision."""

IN_BLOCKS = frozenset({"qwen"})
"""Publishers of which `-FP8` is scaled in blocks of 128 x 128 (`weight_block_size`)."""

ID = re.compile(r"[\w.-]+/[\w.-]+")


def is_id(name: str) -> bool:
    """Return whether a name is that of a repository, and of no file: it has one slash, and does not end in `.json`."""
    return ID.fullmatch(name) is not None and not name.endswith(".json") and not name.startswith(".")


class KnownModel(NamedTuple):
    """A model of the catalog with the shape of a repository."""

    name: str
    dtype: str | None = None
    """Precision of its weights; None: that of the model."""
    context: int | None = None
    """Tokens of its context; None: those of the model."""


def known_model(name: str) -> KnownModel | None:
    """Return the model of the catalog with the shape of a repository, with its precision and its context where they
    are not the model's; None: the catalog does not know it."""
    publisher, _, repository = name.lower().rpartition("/")
    if repository in _known():
        return _known()[repository]
    for end in sorted(PRECISIONS, key=len, reverse=True):
        base = repository.removesuffix(f"-{end}")
        if base != repository and base in _known():
            dtype = "fp8_block" if end == "fp8" and publisher in IN_BLOCKS else PRECISIONS[end]
            return _known()[base]._replace(dtype=dtype)
    return None


def cached_config(name: str) -> Path | None:
    """Return the config.json of a repository in the local cache of the Hugging Face hub; None: it is not there."""
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    folder = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser() / f"models--{name.replace('/', '--')}"
    main, files = folder / "refs" / "main", sorted(folder.glob("snapshots/*/config.json"))
    if main.is_file():  # that of its main revision, else of any
        files.insert(0, folder / "snapshots" / main.read_text(encoding="utf-8").strip() / "config.json")
    return next((file for file in files if file.is_file()), None)


@cache
def _known() -> dict[str, KnownModel]:
    """Return the model of the catalog of each repository, in small letters and without its publisher."""
    text = (resources.files("simserve.catalog") / "hub.yaml").read_text(encoding="utf-8")
    repositories: dict[str, list[str]] = yaml.safe_load(text)
    known: dict[str, KnownModel] = {}
    for key, names in repositories.items():
        model, _, context = key.partition("@")
        known |= dict.fromkeys(map(str.lower, names), KnownModel(model, None, int(context) if context else None))
    return known
