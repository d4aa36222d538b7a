"""Small scenarios in a folder of their own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from simserve.errors import ScenarioError
from simserve.scenario import Scenario, load_scenario

SMALL = """\
schema: simserve/1
name: small
model: llama-3.1-8b
gpu: h100-sxm
workload:
  arrivals: {kind: poisson, rate_per_s: 8}
  lengths: {kind: fixed, prompt_tokens: 512, output_tokens: 192}
  n_requests: 100
"""

Load = Callable[..., Scenario]
MessagesOf = Callable[..., list[str]]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load a text as the file a.yaml of the current directory."""
    monkeypatch.chdir(tmp_path)

    def load_text(text: str = SMALL, *overrides: str, seed: int | None = None) -> Scenario:
        Path("a.yaml").write_text(text, encoding="utf-8")
        return load_scenario("a.yaml", overrides, seed)

    return load_text


@pytest.fixture
def messages_of(load: Load) -> MessagesOf:
    """The messages about a text, or about SMALL, that cannot be loaded."""

    def messages(text: str = SMALL, *overrides: str, seed: int | None = None) -> list[str]:
        with pytest.raises(ScenarioError) as caught:
            load(text, *overrides, seed=seed)
        assert str(caught.value).splitlines() == [str(problem) for problem in caught.value.problems]
        return str(caught.value).splitlines()

    return messages


@pytest.fixture
def small() -> str:
    """A scenario with nothing that need not be said."""
    return SMALL
