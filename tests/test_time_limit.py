"""A test that hangs is stopped and named, and the others run."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HANGING = """
from hypothesis import given, settings
from hypothesis import strategies as st

def test_before():
    pass

@settings(database=None)
@given(st.integers(0, 100))
def test_that_hangs(n):
    while n >= 0:
        pass

def test_after():
    pass
"""


def test_a_property_that_hangs_is_stopped_and_named_by_a_worker(tmp_path: Path) -> None:
    file = tmp_path / "test_hanging.py"
    file.write_text(HANGING)
    options = ["-c", "pyproject.toml", "-p", "no:cacheprovider", "-p", "tests.conftest", "--timeout=2", "-n", "1"]
    command = [sys.executable, "-m", "pytest", "-q", *options, str(file)]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert "::test_that_hangs - tests.conftest.TimedOut" in output
    assert "1 failed, 2 passed" in output
