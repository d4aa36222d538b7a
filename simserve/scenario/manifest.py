"""Manifests of autoscalers: parts of a file with their lines, shapes of their keys, and what is read of them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from simserve.input_files import SCENARIO_BYTES, read_file
from simserve.plugins.validation import Path, ValueProblem, as_json, dotted, problems_of, shown
from simserve.scenario.draft import ScenarioSource
from simserve.scenario.yaml_lines import NotYaml, YamlDocument, read_documents
from simserve.units import SECONDS

SUFFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
SUFFIXES |= {f"{letter}i": 2.0 ** (10 * power) for power, letter in enumerate("KMGTPE", 1)}
"""Factors of a Kubernetes quantity (apimachinery, pkg/api/resource/suffix.go)."""

PARTS = {"m": 1e3, "u": 1e6, "n": 1e9}
"""Its divisors."""

QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([numkKMGTPE]?i?)")

DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")

HELM = re.compile(r"^[^#\n]*\{\{", re.MULTILINE)


class ManifestError(Exception):
    """A manifest that says no policy: its problems, each with its place in the manifest."""

    def __init__(self, problems: Iterable[ValueProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def quantity(value: Any) -> float:
    """Return the number of a Kubernetes quantity, such as 20, "1.5", "500m", "1k" or "1Ki". Raises ValueError."""
    match = QUANTITY.fullmatch(str(value))
    if match is None or match[2] not in SUFFIXES | PARTS:
        raise ValueError(f"must be a quantity such as 20 or 500m, got {shown(value)}")
    return float(match[1]) * SUFFIXES.get(match[2], 1.0) / PARTS.get(match[2], 1.0)


def duration_s(value: Any) -> float:
    """Return the seconds of a duration, such as "60s" or "1m30s". Raises ValueError."""
    parts = DURATION.findall(str(value))
    if not parts or "".join(map("".join, parts)) != str(value):
        raise ValueError(f"must be a duration such as 60s, got {shown(value)}")
    return sum(float(number) * SECONDS[unit] for number, unit in parts)


def number(value: Any) -> float:
    """Return the number of a text, as annotations have it. Raises ValueError."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"must be a number, got {shown(value)}") from None


Quantity = Annotated[float, BeforeValidator(quantity)]
Number = Annotated[float, BeforeValidator(number)]
Duration = Annotated[float, BeforeValidator(duration_s)]

CAMEL_CASE = ConfigDict(alias_generator=to_camel, extra="allow", frozen=True, protected_namespaces=())


class Shape(BaseModel):
    """A mapping of a manifest; its keys are the fields, in camel case."""

    model_config = CAMEL_CASE

    NOTED: ClassVar[str] = ".*"
    """Pattern of the other keys that could change a result; the rest changes nothing."""

    def unused(self, path: Path) -> Iterator[Path]:
        """Yield the keys that could change a result and are not simulated."""
        yield from ((*path, key) for key in self.model_extra or {} if re.fullmatch(self.NOTED, key))
        for name, field in type(self).model_fields.items():
            yield from _unused(getattr(self, name), (*path, field.alias or name))


class Plain(Shape):
    """A mapping of which no other key changes anything."""

    NOTED = ""


def _unused(value: Any, path: Path) -> Iterator[Path]:
    match value:
        case Shape():
            yield from value.unused(path)
        case list():
            for index, item in enumerate(value):
                yield from _unused(item, (*path, index))


ShapeT = TypeVar("ShapeT", bound=Shape)


@dataclass(frozen=True)
class ManifestPart:
    """What one autoscaler is read from: a mapping of a manifest."""

    kind: str
    """Kind of the resource, `Deployment` of a Ray Serve config."""
    name: str
    data: Any
    at: Path
    """Path of the mapping in its document."""
    document: YamlDocument
    file: str
    """The file as the scenario names it."""

    def place(self, path: Path) -> str:
        """Return `file:line: path` of a value of the mapping."""
        return ScenarioSource(self.file, self.document.lines).place((*self.at, *path))

    def located(self, problem: ValueProblem, path: Path | None = None) -> ValueProblem:
        """Return a problem with its place in its rule; `path` is where it stands, if its own path is another's."""
        has_own = problem.remedy is not None or ";" in problem.rule
        remedy = problem.remedy if has_own else "add it" if problem.kind == "missing" else "correct it"
        rule = f"{self.place(problem.path if path is None else path)}: {problem.rule}"
        return replace(problem, path=(), rule=rule, remedy=remedy, kind="value")

    def refused(self, path: Path, rule: str, value: str | None, remedy: str) -> ManifestError:
        """Return the error of a value that cannot be simulated."""
        return ManifestError([self.located(ValueProblem(path, rule, value, remedy))])

    def parsed(self, shape: type[ShapeT]) -> ShapeT:
        """Return the mapping in its shape. Raises ManifestError."""
        if self.document.problems:
            raise ManifestError(replace(self, at=()).located(problem) for problem, _ in self.document.problems)
        try:
            return shape.model_validate_json(as_json(self.data), strict=True)
        except ValidationError as error:
            raise ManifestError(map(self.located, problems_of(error, self.data))) from None


@dataclass(frozen=True)
class ManifestPolicy:
    """A policy as a manifest says it."""

    part: ManifestPart
    spec: dict[str, Any]
    """The policy in the words of a scenario."""
    places: Mapping[Path, Path]
    """Where the manifest says what stands at a path of `spec`; below it, keys are its own in snake case."""
    unused: tuple[str, ...]
    """Keys that could change a result and are not simulated."""

    @classmethod
    def of(
        cls, part: ManifestPart, shape: Shape, spec: Mapping[str, Any], places: Mapping[Path, Path], *unused: str
    ) -> "ManifestPolicy":
        """Return the policy without what is null in `spec`; `unused` are further keys that are not simulated."""
        keys = [dotted((*part.at, *path)) for path in shape.unused(())]
        return cls(part, given(**spec), places, (*keys, *unused))

    @property
    def note(self) -> str | None:
        """Say what of the manifest is not simulated; None: all is."""
        if not self.unused:
            return None
        verb = "is" if len(self.unused) == 1 else "are"
        return f"{FilePath(self.part.file).name}: {', '.join(self.unused)} {verb} not simulated"

    def located(self, problem: ValueProblem) -> ValueProblem:
        """Return a problem of `spec` at what the manifest says of it, or says nothing of."""
        depth = max(n for n in range(len(problem.path) + 1) if problem.path[:n] in self.places)
        place, rest = self.places[problem.path[:depth]], problem.path[depth:]
        while rest and (lower := self._below(place, str(rest[0]), rest[0])) is not None:
            place, rest = lower, rest[1:]
        here = f"give {dotted(problem.path[:1]) or 'the key'} in the scenario, next to `manifest`"
        remedy = here if problem.kind == "missing" else problem.remedy
        if remedy is None and ";" not in problem.rule:
            remedy = f"correct it, or {here}"
        rule = " ".join(filter(None, (dotted(rest), problem.rule)))
        return self.part.located(replace(problem, rule=rule, remedy=remedy), place)

    def _below(self, place: Path, name: str, key: str | int) -> Path | None:
        """Return the place of our key below a place, if the manifest has it, in camel case and perhaps in seconds."""
        plain = name.removesuffix("_s")
        places = ((*place, each) for each in (key, to_camel(name), to_camel(plain), to_camel(f"{plain}_seconds")))
        return next((each for each in places if (*self.part.at, *each) in self.part.document.lines), None)


def given(**values: Any) -> dict[str, Any]:
    """Return the values that are not null."""
    return {key: value for key, value in values.items() if value is not None}


def documents_of(file: FilePath, name: str) -> list[YamlDocument]:
    """Return the documents of a file, which the scenario calls `name`. Raises ManifestError."""
    try:
        text = read_file(file, SCENARIO_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise _of_file(name, f"cannot be read ({error.strerror})", "name a file of YAML") from None
    except UnicodeDecodeError as error:
        raise _of_file(name, f"is not UTF-8 text (byte {error.start})", "name a file of YAML") from None
    if (template := HELM.search(text)) is not None:
        line = text.count("\n", 0, template.end()) + 1
        raise _of_file(
            f"{name}:{line}", "is a template of Helm", "render it first: helm template CHART > rendered.yaml"
        )
    return parsed_documents(text, name)


def parsed_documents(text: str, name: str, n_above: int = 0) -> list[YamlDocument]:
    """Return the documents of a text that has lines of the file above it. Raises ManifestError."""
    try:
        return read_documents(text)
    except NotYaml as error:
        place = name if error.line is None else f"{name}:{error.line + n_above}"
        raise _of_file(place, error.rule, "correct it, or name another file") from None


def _of_file(place: str, rule: str, remedy: str) -> ManifestError:
    return ManifestError([ValueProblem((), f"{place}: {rule}", None, remedy)])
