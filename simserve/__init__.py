"""simserve: a discrete-event simulator of an LLM serving cluster.

    from simserve import load_scenario, simulate
    results = simulate(load_scenario("scenarios/chat_burst.yaml"))
    results.requests  # a pandas DataFrame

The public names are the five in `__all__`; each is imported when first used, so that `simserve --help` stays quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from simserve.version import __version__ as __version__

if TYPE_CHECKING:
    from simserve.metrics.result_folder import load_results
    from simserve.metrics.results import Results
    from simserve.scenario import Scenario, load_scenario
    from simserve.simulation import simulate

__all__ = ["Results", "Scenario", "load_results", "load_scenario", "simulate"]

_HOMES = {
    "Results": "simserve.metrics.results",
    "Scenario": "simserve.scenario",
    "load_results": "simserve.metrics.result_folder",
    "load_scenario": "simserve.scenario",
    "simulate": "simserve.simulation",
}


if not TYPE_CHECKING:  # for a type checker a module with __getattr__ has every name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'simserve' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
