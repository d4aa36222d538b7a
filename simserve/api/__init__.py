"""The Python API: a function a question, with the options and defaults of the command of that name.

    import simserve
    answer = simserve.capacity("chat_burst", gpu="h200-sxm", replicas=3)

A scenario is a path, the name of a shipped one, a dict or a `Scenario`; `changes` are its top-level keys, those of its
only pool, or dotted paths. Nothing heavy is imported before a function runs.
"""

from importlib import import_module

from simserve.api.answers import capacity, explain_model, plan, run
from simserve.api.comparisons import check, compare, sweep
from simserve.api.fleets import autoscale, resilience
from simserve.api.servers import tune, twin, validate
from simserve.metrics.answers.shown import bind

__all__ = [
    "autoscale",
    "capacity",
    "check",
    "compare",
    "explain_model",
    "plan",
    "resilience",
    "run",
    "sweep",
    "tune",
    "twin",
    "validate",
]

bind(lambda: import_module("simserve.report.tell"))
