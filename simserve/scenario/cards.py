"""Cards: a GPU by its name in the catalog, or by the path of a YAML file of one's own."""

from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, ValidationError

from simserve import catalog
from simserve.catalog.specs import GpuSpec
from simserve.catalog.types import Section, with_keys
from simserve.errors import CatalogError
from simserve.input_files import SCENARIO_BYTES, read_file
from simserve.plugins.validation import ValueProblem, as_json, did_you_mean, infinities, problems_of
from simserve.scenario.yaml_lines import NotYaml, YamlDocument, read_yaml
from simserve.units import MIB

Flops = Annotated[float, Field(ge=1e11, le=1e18)]

REMEDY = "data sheets have it; `simserve catalog gpus h100-sxm` shows the numbers of a card"


class Rates(Section):
    """Dense peaks by dtype, FLOP/s; half of what data sheets print for sparse matrices."""

    bf16: Flops
    fp16: Flops | None = None
    """Left out: that of bf16."""
    fp8: Flops | None = None
    int8: Flops | None = None
    fp4: Flops | None = None


@with_keys(
    {
        each.name: (each.type, ... if each.default is MISSING else each.default)
        for each in fields(GpuSpec)
        if each.name not in ("name", "flop_per_s", "hbm_bytes", "sources")
    }
    | {"sources": (dict[str, str], {})}
)
class CardFile(Section):
    """The file of a GPU: the name of the file is that of the card."""

    model_config = ConfigDict(defer_build=True)  # fast: most scenarios name a card of the catalog

    flop_per_s: Rates
    memory_mib: Annotated[float, Field(ge=1024, le=2**22)]
    """Total memory as the driver reports it."""


def is_file(gpu: str) -> bool:
    """Tell whether a GPU is the path of a file rather than a name in the catalog."""
    return gpu.endswith((".yaml", ".yml")) or "/" in gpu


def load_gpu(gpu: str) -> GpuSpec:
    """Load a GPU by its name in the catalog or by the path of a file. Raises CatalogError."""
    if not is_file(gpu):
        return catalog.load_gpu(gpu)
    path = Path(gpu).expanduser()
    document = _document(path)
    name = path.stem
    if name in catalog.names("gpus"):
        raise CatalogError(f"{path}: is named as a card of the catalog, got '{name}'; rename the file")
    try:
        card = CardFile.model_validate_json(as_json(document.data), strict=True)
    except ValidationError as error:
        raise _error(path, document, problems_of(error, document.data)) from None
    rates = {dtype: flop_per_s for dtype, flop_per_s in card.flop_per_s if flop_per_s is not None}
    rates.setdefault("fp16", card.flop_per_s.bf16)
    values = {key: value for key, value in card if key not in ("flop_per_s", "memory_mib")}
    spec = GpuSpec(name=name, flop_per_s=rates, hbm_bytes=card.memory_mib * MIB, **values)
    if spec.kernels_like not in (None, *catalog.names("gpus")):
        near = did_you_mean(str(spec.kernels_like), catalog.names("gpus"))
        problem = ValueProblem(("kernels_like",), "no such GPU in the catalog", f"'{spec.kernels_like}'", near)
        raise _error(path, document, [problem])
    return spec


def _document(path: Path) -> YamlDocument:
    try:
        text = read_file(path, SCENARIO_BYTES).decode("utf-8-sig")
        document = read_yaml(text)
    except OSError as error:
        raise CatalogError(f"{path}: cannot be read ({error.strerror}); give a catalog name or a card's YAML") from None
    except UnicodeDecodeError as error:
        raise CatalogError(f"{path}: is not UTF-8 text (byte {error.start})") from None
    except NotYaml as error:
        raise CatalogError(f"{_place(path, error.line)}: {error.rule}") from None
    if document.problems:
        raise _error(path, document, [problem for problem, _ in document.problems], document.problems[0][1])
    if not isinstance(document.data, dict):
        raise CatalogError(f"{path}: must be a mapping of a card's numbers; {REMEDY}")
    if endless := infinities(document.data):
        raise _error(path, document, endless)
    return document


def _error(path: Path, document: YamlDocument, problems: list[ValueProblem], line: int | None = None) -> CatalogError:
    """Return the first problem of a file in words, and how many there are."""
    first = min(problems, key=lambda problem: problem.kind != "unknown")  # a typo explains what is missing
    if first.kind == "unknown":
        part = Rates if len(first.path) > 1 else CardFile
        first = replace(first, remedy=did_you_mean(str(first.path[-1]), part.model_fields))
    places = (first.path[:n] for n in range(len(first.path), 0, -1))
    line = line or next((document.lines[place] for place in places if place in document.lines), None)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return CatalogError(f"{_place(path, line)}: {replace(first, remedy=first.remedy or REMEDY)}{more}")


def _place(path: Path, line: int | None) -> str:
    return str(path) if line is None else f"{path}:{line}"
