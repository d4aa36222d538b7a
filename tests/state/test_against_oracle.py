"""Cohorts, queues, pools and caches of small random clusters hold what the oracle's lists hold."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.test_oracle_together import Scene, loads, scenes, separate, together

WORLDS = {
    "speculation": together(("speculating",)),
    "orders": together(("ordered",)),
    "host memory": together(("tiered",)),
    "hand-over": separate(("pushed", "plain")),
}


@pytest.mark.parametrize("kind", WORLDS)
def test_state_is_that_of_the_oracle(kind: str) -> None:
    @settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
    @given(scenes(WORLDS[kind]), st.data())
    def agree(scene: Scene, data: st.DataObject) -> None:
        scene.check(data.draw(loads(scene.world)))

    agree()
