"""Find the class of a plug-in by its name in a scenario: the name is the file, and there is no registry."""

import inspect
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import MappingProxyType, ModuleType

from simserve.allowed_modules import allowed_modules, plugins_importable
from simserve.plugins.validation import ValueProblem, did_you_mean, shown

FAMILIES = MappingProxyType(
    {
        "schedulers": ("Scheduler", "scheduler"),
        "routers": ("Router", "router"),
        "admission": ("Admission", "admission policy"),
        "splitters": ("Splitter", "splitter"),
        "autoscalers": ("Autoscaler", "autoscaler"),
        "workload.arrivals": ("Arrivals", "arrival process"),
        "workload.lengths": ("Lengths", "length distribution"),
        "workload.prefixes": ("PrefixStructure", "prefix structure"),
    }
)
"""Base class of each family, in the base module of its package, and the noun for one of its plug-ins."""

NOUNS = MappingProxyType({family: noun for family, (_, noun) in FAMILIES.items()})

RENAMED = MappingProxyType({"schedulers": {"follows": "is_stateful", "seats": "max_running"}})
"""Attributes of policies that have new names: the old ones would be ignored silently."""


def names(family: str) -> list[str]:
    """Return the names of a family's plug-ins that come with simserve, in alphabetical order."""
    package = import_module(f"simserve.{family}")
    modules = (module.name for module in iter_modules(package.__path__) if module.name != "base")
    return sorted(name for name in modules if _classes(family, import_module(f"simserve.{family}.{name}")))


def find(family: str, name: str) -> type | ValueProblem:
    """Return the class of a plug-in: `chunked` of this package, or `my_pkg.my_mod:MyClass` of the user."""
    if ":" in name:
        return _find_outside(family, name)
    if name.isidentifier() and name != "base" and find_spec(f"simserve.{family}.{name}"):
        classes = _classes(family, import_module(f"simserve.{family}.{name}"))
        if classes:
            return classes[0]
    known = names(family)
    remedy = f"{did_you_mean(name, known)} (your own: my_module:MyClass)"
    return ValueProblem((), f"unknown {NOUNS[family]}", shown(name), remedy)


def base_of(family: str) -> type:
    """Return the base class of a family."""
    base: type = getattr(import_module(f"simserve.{family}.base"), FAMILIES[family][0])
    return base


def _classes(family: str, module: ModuleType) -> list[type]:
    """Return the public plug-in classes that a module defines itself."""
    base = base_of(family)
    return [
        item
        for item in vars(module).values()
        if inspect.isclass(item)
        and issubclass(item, base)
        and item.__module__ == module.__name__
        and not item.__name__.startswith("_")
    ]


def _find_outside(family: str, name: str) -> type | ValueProblem:
    module_name, _, class_name = name.partition(":")
    allowed = allowed_modules()
    if allowed is not None and not allowed.permits(module_name):
        rule = f"the module {module_name} may not be imported, as importing runs it"
        return ValueProblem((), rule, shown(name), f"add --allow-plugin {module_name} if you trust it")
    try:
        with plugins_importable():
            module = import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        text = f"{type(error).__name__}: {error}"
        return ValueProblem((), f"the module {module_name} cannot be imported ({text})", shown(name))
    plugin_class = getattr(module, class_name, None)
    if not inspect.isclass(plugin_class):
        choices = [item.__name__ for item in _classes(family, module)]
        remedy = did_you_mean(class_name, choices) if choices else None
        return ValueProblem((), f"the module {module_name} has no class {class_name}", shown(name), remedy)
    base = base_of(family)
    if not issubclass(plugin_class, base):
        rule = f"must be a kind of {base.__module__}.{base.__name__}"
        return ValueProblem((), rule, shown(name), f"derive {class_name} from it")
    return plugin_class
