"""AdmissionGate: consults the admission policy before a request reaches the router."""

from simserve.admission.base import Admission, QueueView
from simserve.engine.checks import broke, raised
from simserve.engine.offered import OfferedRows
from simserve.state.request import Request


class AdmissionGate:
    """Stands between the front end and the router; only in clusters with an admission policy.

    Without a replica that is ready there is nothing to decide by: requests wait, and are decided upon afterward. A
    refusal takes no time.
    """

    def __init__(self, policy: Admission, rows: OfferedRows) -> None:
        self._policy, self._rows = policy, rows
        self.views: list[QueueView] = []
        policy.begin()

    def why_refused(self, row: int, now_ps: int) -> str | None:
        """Return why the policy refuses a request; None: it admits it. Raises PolicyError."""
        request = Request(row, now_ps, self._rows.prompt_tokens[row], self._rows.max_tokens[row])
        try:
            reason = self._policy.decide(request, self.views, now_ps)
        except Exception as error:
            raise raised(self._policy, "decide", now_ps, error) from error
        if reason is not None and (not isinstance(reason, str) or not reason):
            raise broke(self._policy, "decide", now_ps, "must return None or a reason as text", reason)
        return reason
