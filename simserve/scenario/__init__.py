"""Scenarios: one experiment as data, from YAML to frozen models, with all mistakes told at once.

Reading order: models.py (what there is), loader.py (how it gets in), resolve.py (how it is checked and filled in).
"""

from simserve.scenario.loader import load_scenario
from simserve.scenario.models import Scenario
from simserve.scenario.schema import scenario_schema
from simserve.scenario.setup import PoolSetup

__all__ = ["PoolSetup", "Scenario", "load_scenario", "scenario_schema"]
