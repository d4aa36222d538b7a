"""Arguments of a plug-in: the fields of its class, which are its YAML keys; checked, as a manual and as JSON Schema."""

import dataclasses
import inspect
import math
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticUndefined

from simserve.errors import PolicyError
from simserve.plugins.docstrings import DescribedSchema, SourceField, source_fields
from simserve.plugins.find import NOUNS, RENAMED, find
from simserve.plugins.validation import ValueProblem, as_json, did_you_mean, infinities, problems_of, shown

Spec = str | Mapping[str, Any]
"""A plug-in in a scenario: its name, or `{kind: name, its arguments...}`."""


@dataclasses.dataclass(frozen=True)
class Argument:
    """One key of a plug-in's YAML."""

    name: str
    type: str
    is_required: bool
    default: Any
    """Default value; None if required, too."""
    meaning: str


@dataclasses.dataclass(frozen=True)
class Description:
    """Manual page of a plug-in."""

    family: str
    name: str
    text: str
    arguments: tuple[Argument, ...]


def build(family: str, spec: Spec) -> Any:
    """Return the plug-in of a spec. Raises PolicyError with all its problems."""
    plugin, problems = check(family, spec)
    if problems:
        name = spec if isinstance(spec, str) else spec.get("kind", "")
        raise PolicyError("\n".join(f"{NOUNS[family]} {name}: {problem}" for problem in problems))
    return plugin


def check(family: str, spec: Spec) -> tuple[Any | None, list[ValueProblem]]:
    """Return the plug-in and no problems, or None and all problems, with paths inside the spec."""
    written = {"kind": spec} if isinstance(spec, str) else dict(spec)
    kind = written.pop("kind", None)
    if kind is None:
        return None, [ValueProblem(("kind",), "is missing", remedy=f"name the {NOUNS[family]}", kind="missing")]
    if not isinstance(kind, str):
        return None, [ValueProblem(("kind",), "must be text", shown(kind))]
    plugin_class = find(family, kind)
    if isinstance(plugin_class, ValueProblem):
        return None, [plugin_class.below(() if isinstance(spec, str) else ("kind",))]
    plugin, problems = _construct(plugin_class, written)
    renamed = RENAMED.get(family, {})
    for old in [name for name in renamed if hasattr(plugin, name)]:
        rule = f"{plugin_class.__name__}.{old} must have its new name {renamed[old]}"
        problems.append(ValueProblem((), rule, old, f"rename it in {plugin_class.__module__}"))
    return (None, problems) if problems else (plugin, [])


def spelled_out(plugin: Any) -> dict[str, Any]:
    """Return every argument of a plug-in as plain data, including defaults."""
    if not dataclasses.is_dataclass(plugin):
        return {}
    values: dict[str, Any] = TypeAdapter(type(plugin)).dump_python(plugin, mode="json")
    return values


def describe(family: str, name: str) -> Description:
    """Describe a plug-in. Raises PolicyError with a did-you-mean for an unknown name."""
    plugin_class = find(family, name)
    if isinstance(plugin_class, ValueProblem):
        raise PolicyError(f"{NOUNS[family]} {name}: {plugin_class}")
    written = source_fields(plugin_class)
    arguments = []
    for field in _fields_of(plugin_class):
        default, source = _default(field), written.get(field.name, SourceField(str(field.type)))
        required = default is dataclasses.MISSING
        arguments.append(Argument(field.name, source.type, required, None if required else default, source.meaning))
    return Description(family, name, inspect.cleandoc(plugin_class.__doc__ or ""), tuple(arguments))


def plugin_schema(plugin_class: type) -> dict[str, Any]:
    """Return the JSON Schema of a plug-in's arguments."""
    if not dataclasses.is_dataclass(plugin_class):
        return {"type": "object", "properties": {}}
    return TypeAdapter(plugin_class).json_schema(schema_generator=DescribedSchema)


def _fields_of(plugin_class: type) -> tuple[dataclasses.Field[Any], ...]:
    """Return the arguments of a class."""
    if not dataclasses.is_dataclass(plugin_class):
        return ()
    return tuple(field for field in dataclasses.fields(plugin_class) if field.init)


def _construct(plugin_class: type, written: Mapping[str, Any]) -> tuple[Any | None, list[ValueProblem]]:
    known = [field.name for field in _fields_of(plugin_class)]
    problems = [_unknown(plugin_class, key, known) for key in written if key not in known]
    problems += [problem for problem in infinities(written) if not _may_be_infinite(plugin_class, problem, written)]
    arguments = {key: value for key, value in written.items() if key in known}
    try:
        if not dataclasses.is_dataclass(plugin_class):
            plugin = plugin_class()
        else:
            plugin = TypeAdapter(plugin_class).validate_json(as_json(arguments), strict=True)
    except ValidationError as error:
        seen = {problem.path for problem in problems}
        others = [problem for problem in problems_of(error, arguments) if problem.path not in seen]
        return None, problems + [_with_remedy(plugin_class, problem) for problem in others]
    except (Exception, SystemExit) as error:  # a user's own class may raise anything
        return None, [*problems, ValueProblem((), f"{plugin_class.__name__} raised {type(error).__name__}: {error}")]
    return plugin, problems


def _unknown(plugin_class: type, key: str, known: list[str]) -> ValueProblem:
    if known:
        remedy = did_you_mean(key, known)
    elif dataclasses.is_dataclass(plugin_class):
        remedy = f"{plugin_class.__name__} takes no arguments"
    else:
        remedy = f"make {plugin_class.__name__} a pydantic dataclass with its arguments as fields"
    return ValueProblem((key,), "unknown argument", remedy=remedy, kind="unknown")


def _may_be_infinite(plugin_class: type, problem: ValueProblem, written: Mapping[str, Any]) -> bool:
    """Return whether a problem is an infinity that its class permits with `Field(allow_inf_nan=True)`; never NaN."""
    key = str(problem.path[0])
    if len(problem.path) > 1 or math.isnan(written[key]):
        return False
    hint = get_type_hints(plugin_class, include_extras=True).get(key)
    declared = [inner for extra in getattr(hint, "__metadata__", ()) for inner in getattr(extra, "metadata", ())]
    return any(getattr(inner, "allow_inf_nan", False) for inner in declared)


def _with_remedy(plugin_class: type, problem: ValueProblem) -> ValueProblem:
    """Add the known keys to an unknown key inside an argument."""
    if problem.kind != "unknown":
        return problem
    holder = plugin_class
    for item in problem.path[:-1]:
        holder = _dataclass_in(get_type_hints(holder).get(str(item))) or holder
    known = [field.name for field in _fields_of(holder)]
    return dataclasses.replace(problem, remedy=did_you_mean(str(problem.path[-1]), known))


def _dataclass_in(annotation: Any) -> type | None:
    """Return the dataclass inside `Draw | None` or `list[Draw]`."""
    if inspect.isclass(annotation) and dataclasses.is_dataclass(annotation):
        return annotation
    return next((dataclass for inner in get_args(annotation) if (dataclass := _dataclass_in(inner))), None)


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, or MISSING."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    default = getattr(field.default, "default", field.default)  # pydantic's Field(default=...) wraps it
    return dataclasses.MISSING if default is PydanticUndefined else default
