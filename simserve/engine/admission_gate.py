"""AdmissionGate: consults the admission policy before a request reaches the router."""

from collections.abc import Callable

from simserve.admission.base import Admission, QueueView
from simserve.engine.checks import broke, raised
from simserve.engine.offered import OfferedRows
from simserve.state.request import Request

Send = Callable[[int, int], None]
"""Called with a row that has passed the front end, and the instant."""

OnRefusal = Callable[[int, str, int], None]
"""Called with the row of a refused request, the reason and the instant."""


class AdmissionGate:
    """Stands between the front end and the router; only in clusters with an admission policy.

    Without a replica that is ready there is nothing to decide by: requests wait, and are decided upon afterward.
    """

    def __init__(
        self, policy: Admission, rows: OfferedRows, send: Send, on_refusal: OnRefusal, hold: Callable[[int, Send], None]
    ) -> None:
        self._policy = policy
        self._rows = rows
        self._send = send
        self._on_refusal = on_refusal
        self._hold = hold
        self.views: list[QueueView] = []
        policy.begin()

    def send(self, row: int, now_ps: int) -> None:
        """Forward a request unless the policy refuses it; a refusal takes no time."""
        if not self.views:
            self._hold(row, self.send)
            return
        reason = self.why_refused(row, now_ps)
        if reason is None:
            self._send(row, now_ps)
        else:
            self._on_refusal(row, reason, now_ps)

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
