"""How the suite shares the machine: a thread for each worker of `pytest -n`, and idle ones take over work."""

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
"""Before numpy is loaded, here and in whatever the tests start. Our matrices are small: two workers with two threads
each spend more time waiting for each other than computing."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "Scheduling | None":
    """A worker that is done takes tests from the others, as a few tests take most of the time."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None
