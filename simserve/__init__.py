"""simserve: a discrete-event simulator of an LLM serving cluster.

    import simserve
    answer = simserve.run("chat_burst", gpu="h200-sxm", replicas=3)
    answer.decision, answer.to_frame(), answer.page("report.html")

The public names are those of `__all__`; each is imported when first used, so that `simserve --help` stays quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from simserve.version import __version__ as __version__

if TYPE_CHECKING:
    from simserve.admission.base import Admission
    from simserve.api import autoscale, capacity, check, compare, plan, resilience, run, sweep, tune, twin, validate
    from simserve.api.answers import explain_model
    from simserve.autoscalers.base import Autoscaler
    from simserve.metrics.result_folder import load_results
    from simserve.metrics.results import Results
    from simserve.routers.base import Router
    from simserve.scenario import Scenario, load_scenario
    from simserve.schedulers.base import Scheduler
    from simserve.simulation import simulate

_HOMES = {
    "Admission": "simserve.admission.base",
    "Autoscaler": "simserve.autoscalers.base",
    "Results": "simserve.metrics.results",
    "Router": "simserve.routers.base",
    "Scenario": "simserve.scenario",
    "Scheduler": "simserve.schedulers.base",
    "explain_model": "simserve.api",
    "load_results": "simserve.metrics.result_folder",
    "load_scenario": "simserve.scenario",
    "simulate": "simserve.simulation",
} | dict.fromkeys(
    ("autoscale", "capacity", "check", "compare", "plan", "resilience", "run", "sweep", "tune", "twin", "validate"),
    "simserve.api",
)

__all__ = [
    "Admission",
    "Autoscaler",
    "Results",
    "Router",
    "Scenario",
    "Scheduler",
    "autoscale",
    "capacity",
    "check",
    "compare",
    "explain_model",
    "load_results",
    "load_scenario",
    "plan",
    "resilience",
    "run",
    "simulate",
    "sweep",
    "tune",
    "twin",
    "validate",
]

if not TYPE_CHECKING:  # for a type checker a module with __getattr__ has every name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'simserve' has no attribute {name!r}")
        import_module("simserve.api")  # which lets answers show themselves
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
