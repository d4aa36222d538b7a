"""Scenarios: one experiment as data, from YAML to frozen models, with all problems reported at once.

Reading order: experiment.py (the keys, section by section with its rules), loader.py (reading a file),
resolve.py (checks and defaults), scenario.py (the result).
"""

from simserve.scenario.loader import load_scenario
from simserve.scenario.scenario import Scenario, scenario_schema
from simserve.scenario.setup import PoolSetup

__all__ = ["PoolSetup", "Scenario", "load_scenario", "scenario_schema"]
