"""Results: tables, facts and summary of a run, reduced from what the engine recorded."""

from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from simserve.errors import OutputError
from simserve.metrics.answers.shown import Shown
from simserve.metrics.decision import Decision
from simserve.metrics.figures import Summary
from simserve.metrics.reduction import Contents, Reduction
from simserve.metrics.summary_schema import DecisionJson
from simserve.metrics.tails import Sample
from simserve.metrics.window import ArrivalRates
from simserve.tables.columns import Columns, TableRows, frame
from simserve.tables.facts import RunFacts, facts_to_dict
from simserve.tables.files import json_text
from simserve.tables.folder import check_folder, result_folder
from simserve.tables.run_tables import RunTables, full_steps
from simserve.tables.schema import MORE_TABLES, REQUESTS, TABLES

if TYPE_CHECKING:
    import pandas as pd

StepRows = Literal["stretch", "full", "none"]
"""Rows of steps.parquet: one per step run, one per step, or no file and no spans.parquet."""


class Results(Shown):
    """One run. The tables are pandas DataFrames, made when first asked for; times are in seconds."""

    command = "run"

    def __init__(
        self,
        facts: RunFacts,
        scenario_yaml: str | Callable[[], str],
        of: Contents | Reduction,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """on_end is called when all is reduced."""
        self.facts = facts
        self._yaml = scenario_yaml
        self._of, self._on_end = of, on_end

    @classmethod
    def from_run(
        cls,
        tables: RunTables,
        facts: RunFacts,
        scenario_yaml: str | Callable[[], str],
        arrivals: ArrivalRates | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> "Results":
        """Reduce what the engine recorded, as far as it is asked for; on_end is called when all is."""
        return cls(facts, scenario_yaml, Reduction(tables, facts, arrivals), on_end)

    @cached_property
    def scenario_yaml(self) -> str:
        """The scenario with all values, and where they come from."""
        return self._yaml() if callable(self._yaml) else self._yaml

    @cached_property
    def contents(self) -> Contents:
        """Its files; what made them is forgotten, except for the decision."""
        self.basis = self.basis
        contents = self._of = self._of.contents()
        if self._on_end is not None:
            self._on_end()
        return contents

    @cached_property
    def columns(self) -> dict[str, Columns]:
        """The tables as numpy columns, by their names in `tables.schema`; not all have steps, spans, replications."""
        return self.contents.columns

    @cached_property
    def figures(self) -> Summary:
        """What summary.json has, as a struct."""
        return self.contents.figures

    @property
    def vllm_bench(self) -> dict[str, Any]:
        """Contents of vllm_bench.json."""
        return self.contents.vllm_bench

    @cached_property
    def basis(self) -> Decision | None:
        """What the decision of the summary rests on; None without an SLO, and read from a folder."""
        return self._of.decision

    @property
    def recorded(self) -> Columns:
        """The requests of a run with at least what a decision needs."""
        return self._of.recorded

    def part(self, keys: Collection[str]) -> Summary:
        """Return the figures with these keys, which takes less time than all; no other can be read."""
        return self._of.part(keys)

    @property
    def sample(self) -> Sample:
        """The run itself, as a decision sees it; without requests where it has no SLO."""
        return Sample({}, 1.0, None, None) if self.basis is None else self.basis.runs[0]

    def decide(self, decision: Decision) -> None:
        """Put a decision that rests on more than this run into the summary."""
        self.basis, answer = decision, self.figures.answer
        old = {"decision": decision.old_word, "queue": decision.queue}
        self.put(decision=decision.facts(), answer=answer and answer.model_copy(update=old))

    def put(self, **figures: Any) -> None:
        """Put what further runs tell into the summary."""
        self.figures = self.figures.model_copy(update=figures)

    @property
    def summary(self) -> dict[str, Any]:
        """Contents of summary.json."""
        return self.figures.facts()

    @property
    def decision(self) -> DecisionJson | None:
        """The decision about the SLO; None without one."""
        return self.figures.decided

    @property
    def rows(self) -> TableRows:
        """The rows of requests.parquet."""
        return TableRows("requests.parquet", REQUESTS, self.columns["requests"])

    @cached_property
    def requests(self) -> "pd.DataFrame":
        """One row a request."""
        return self._frame("requests")

    @cached_property
    def steps(self) -> "pd.DataFrame":
        """One row a stretch of steps. Raises OutputError where the run was written without."""
        return self._frame("steps")

    @cached_property
    def spans(self) -> "pd.DataFrame":
        """One row a completed prefill and the decode steps after it. Raises OutputError where written without."""
        return self._frame("spans")

    @cached_property
    def timeseries(self) -> "pd.DataFrame":
        """One row a replica and interval."""
        return self._frame("timeseries")

    @cached_property
    def members(self) -> "pd.DataFrame":
        """One row a replica: when it was in the fleet, and why. Raises OutputError for a run of an earlier version."""
        return self._frame("members")

    @cached_property
    def replications(self) -> "pd.DataFrame":
        """One row a seed. Raises OutputError for a run without replications."""
        return self._frame("replications")

    def write(
        self, directory: str | Path, steps: StepRows = "stretch", report: Callable[["Results"], str] | None = None
    ) -> None:
        """Write all files into a folder, whole or not at all; `report` makes the page, None leaves it out.

        Raises OutputError if the folder holds anything but an earlier result, or cannot be written.
        """
        check_folder(Path(directory))
        page = report(self) if report else None
        with result_folder(Path(directory)) as folder:
            self._write_tables(folder, steps)
            texts = {
                "scenario.yaml": self.scenario_yaml,
                "summary.json": json_text(self.summary),
                "vllm_bench.json": json_text(self.vllm_bench),
            }
            for name, text in (texts | ({"report.html": page} if page is not None else {})).items():
                (folder / name).write_text(text, encoding="utf-8")

    def _write_tables(self, folder: Path, steps: StepRows) -> None:
        from simserve.tables.parquet import write_table  # late: pyarrow

        facts = {"facts": json_text(facts_to_dict(self.facts))}
        for name, columns in self.columns.items():
            if steps == "none" and name in ("steps", "spans"):
                continue
            if steps == "full" and name == "steps":
                columns = full_steps(columns)
            fields = (TABLES | MORE_TABLES)[name]
            write_table(folder / f"{name}.parquet", fields, columns, facts if name == "requests" else None)

    def _frame(self, name: str) -> "pd.DataFrame":
        if name not in self.columns:
            remedies = dict.fromkeys(MORE_TABLES, "with --replications") | {"members": "with this version"}
            remedy = remedies.get(name, "without --steps none")
            raise OutputError(f"{name}: this run was written without them; run it again {remedy}")
        return frame((TABLES | MORE_TABLES)[name], self.columns[name])
