"""AdmissionGate: consults the admission policy before a request reaches the router."""

from collections.abc import Callable, Sequence

from simserve.admission.base import Admission, QueueView
from simserve.engine.checks import broke, raised
from simserve.engine.offered import OfferedRows
from simserve.engine.recorder import Recorder
from simserve.state.request import Request

Placed = tuple[Request, int]
"""An accepted request and the id of its replica."""

Send = Callable[[int, int], Placed | None]
"""Called with a row that has passed the front end, and the instant; None: the request was refused."""

OnRefusal = Callable[[int, str, int], None]
"""Called with the row of a refused request, the reason and the instant."""


class AdmissionGate:
    """Stands between the front end and the router; only in clusters with an admission policy."""

    def __init__(self, policy: Admission, rows: OfferedRows, recorder: Recorder, send: Send) -> None:
        self._policy = policy
        self._rows = rows
        self._recorder = recorder
        self._send = send
        self.views: Sequence[QueueView] = ()
        self.on_refusal: OnRefusal | None = None
        policy.begin()

    def send(self, row: int, now_ps: int) -> Placed | None:
        """Forward a request unless the policy refuses it; a refusal takes no time."""
        reason = self._decide(Request(row, now_ps, self._rows.prompt_tokens[row], self._rows.max_tokens[row]), now_ps)
        if reason is None:
            return self._send(row, now_ps)
        self._recorder.reject(row, reason)
        if self.on_refusal is not None:
            self.on_refusal(row, reason, now_ps)
        return None

    def _decide(self, request: Request, now_ps: int) -> str | None:
        try:
            reason = self._policy.decide(request, self.views, now_ps)
        except Exception as error:
            raise raised(self._policy, "decide", now_ps, error) from error
        if reason is not None and (not isinstance(reason, str) or not reason):
            raise broke(self._policy, "decide", now_ps, "must return None or a reason as text", reason)
        return reason
