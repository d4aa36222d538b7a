"""Build hook: compile the files that take a run's time where there is a C compiler; elsewhere they stay Python.

The same sources run either way, with the same results. `SIMSERVE_PURE=1` when building, an editable install, a machine
without compiler or Python.h, and a failure to compile all give the pure wheel. Binaries are made in a folder of their
own, so that none is ever left beside a source.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = (
    "columns/arrivals.py",
    "columns/batch.py",
    "columns/contents.py",
    "columns/dispatcher.py",
    "columns/handover.py",
    "columns/entrance.py",
    "columns/leaving.py",
    "columns/lines.py",
    "columns/live.py",
    "columns/loop.py",
    "columns/prompts.py",
    "columns/records.py",
    "columns/replica.py",
    "columns/run.py",
    "columns/running.py",
    "columns/sides.py",
    "columns/swaps.py",
    "columns/tiers.py",
    "columns/units.py",
    "columns/turns.py",
    "columns/views.py",
    "state/policies.py",
    "state/sglang_planner.py",
    "state/acceptance.py",
    "state/block_counts.py",
    "state/block_runs.py",
    "state/cohort.py",
    "state/eviction.py",
    "state/grouped_cohort.py",
    "state/host_memory.py",
    "state/id_runs.py",
    "state/kv_pool.py",
    "state/planner.py",
    "state/prefix_cache.py",
    "state/remaining.py",
    "state/request.py",
    "state/sent_prompts.py",
    "state/speculative_cohort.py",
    "state/step_plan.py",
    "state/view.py",
    "state/walk.py",
    "engine/checks.py",
    "engine/cluster.py",
    "engine/decode.py",
    "engine/frontend.py",
    "engine/fleet.py",
    "engine/handoff.py",
    "engine/in_flight.py",
    "engine/live_view.py",
    "engine/lock_step.py",
    "engine/memory.py",
    "engine/recorder.py",
    "engine/replica.py",
    "engine/routing_view.py",
    "engine/senders.py",
    "engine/session_sender.py",
    "engine/step_run.py",
    "engine/wiring.py",
    "integers.py",
    "cost/kernels.py",
    "cost/overlap.py",
    "cost/speculative.py",
    "cost/step.py",
    "cost/step_lines.py",
)
"""Files that take a run's time; none has classes that plug-ins derive from, as these cannot be compiled."""

OPTIONS = ("--config-file=", "--ignore-missing-imports", "--follow-imports=silent")


class CompiledFiles(BuildHookInterface[Any]):
    """Adds the compiled files to a wheel."""

    def initialize(self, kind: str, build_data: dict[str, Any]) -> None:
        """Compile into a temporary folder and add what comes out; a failure leaves the wheel pure and says why."""
        if kind == "editable" or os.environ.get("SIMSERVE_PURE") == "1":
            return
        folder = self._folder = Path(tempfile.mkdtemp(prefix="simserve-build-"))
        shutil.copytree(Path(self.root) / "simserve", folder / "simserve")
        done = subprocess.run([sys.executable, __file__], cwd=folder, capture_output=True, text=True)
        if done.returncode:
            last_line = (done.stderr or done.stdout).strip().rpartition("\n")[2]
            self.app.display_warning(f"simserve is built as pure Python: {last_line[:160]}")
            return
        binaries = [path for path in folder.rglob("*") if path.suffix in (".so", ".pyd") and "build" not in path.parts]
        build_data["force_include"] |= {str(path): path.relative_to(folder).as_posix() for path in binaries}
        build_data["pure_python"], build_data["infer_tag"] = False, True
        build_data["dependencies"].append(_runtime())

    def finalize(self, kind: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder, ignore_errors=True)


def _runtime() -> str:
    """Return what compiled files need at run time: the library of columns that they were compiled against."""
    major, minor = version("librt").split(".")[:2]
    return f"librt>={major}.{minor},<{major}.{int(minor) + 1}"


def compile_here() -> None:
    """Compile the files of the package in this folder, each to a binary beside its source."""
    import simpy  # noqa: F401  # without its types, mypyc would take the base of Clock for object
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    modules = mypycify(
        [*OPTIONS, *(f"simserve/{name}" for name in COMPILED)], opt_level="3", debug_level="0", group_name="simserve"
    )
    command = build_ext(Distribution({"ext_modules": modules}))
    command.inplace = True
    command.ensure_finalized()
    command.run()


if __name__ == "__main__":
    compile_here()
