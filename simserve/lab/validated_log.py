"""Validated log: a real server's log against the simulator, with what the errors allow."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from simserve.lab.log_error_facts import log_error_facts, requests_of, trust_in_log
from simserve.lab.log_errors import replay_log, server_of
from simserve.lab.log_pages import tell
from simserve.lab.trust import Trust
from simserve.metrics.answers.shown import Shown
from simserve.report.document import Document
from simserve.tables.columns import TableRows
from simserve.tables.files import plain
from simserve.tables.schema import Field
from simserve.workload.readers.logs import read_log

if TYPE_CHECKING:
    from simserve.tables.columns import Columns


NUMBERS = ("_s", "_tokens")
"""Ends of the names of columns of numbers."""


@dataclass(frozen=True, repr=False)
class ValidatedLog(Shown):
    """A log replayed request by request."""

    command: ClassVar[str] = "validate"
    decision: Trust
    """What the errors allow, with each latency's error and the command that calibrates."""
    printed: Mapping[str, Any]
    """What `--json` prints: the decision, distributions, errors, the worst requests, each request."""
    requests: "Columns"
    """Each request: lengths, and each latency measured and predicted, `(n_requests,)` each."""

    @classmethod
    def of(cls, log: Path, scenario: Path) -> "ValidatedLog":
        """Replay the requests of a log on the server of a scenario. Raises SimserveError."""
        server = server_of(scenario)
        replay = replay_log(read_log(log, server.seed), server)
        decision, requests = trust_in_log(replay, str(scenario)), requests_of(replay)
        printed = plain({"decision": decision.facts(), **log_error_facts(replay)})
        return cls(decision, printed, {name: column for name, column in requests.items() if column is not None})

    @property
    def document(self) -> Document:
        """All that it tells."""
        return tell(self.printed, self.decision)

    @property
    def rows(self) -> TableRows:
        """A row a request; null where a side has no latency."""
        numbers = {name: column for name, column in self.requests.items() if name.endswith(NUMBERS)}
        return TableRows("validation.parquet", tuple(Field(name, "float") for name in numbers), numbers)
