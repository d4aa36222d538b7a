"""Resolve admission and client behavior (timeouts and retries), and check that they fit together."""

from typing import Any

from simserve import plugins
from simserve.plugins.validation import Path
from simserve.scenario.draft import Draft
from simserve.scenario.loads import Workload
from simserve.scenario.servers import ClusterSection

ADMISSION: Path = ("cluster", "admission")
TIMEOUT: Path = ("workload", "timeout")
RETRIES: Path = ("workload", "retries")


def resolve_admission(draft: Draft, cluster: ClusterSection) -> dict[str, Any] | None:
    """Return the policy with all its arguments; None admits every request."""
    spec = cluster.admission
    if spec is None:
        return None
    policy, problems = plugins.check("admission", spec)
    draft.problems.extend(problems, ADMISSION)
    return spec if policy is None else {"kind": spec["kind"], **plugins.spelled_out(policy)}


def check_clients(draft: Draft, workload: Workload) -> None:
    """Check that timeouts, retries and admission do not contradict each other."""
    _check_timeout(draft, workload)
    retries, admission = workload.retries, draft.scenario.cluster.admission
    is_idle = retries is not None and workload.timeout is None and admission is None
    if is_idle and not draft.problems.touch(TIMEOUT, ADMISSION):
        rule = "retries need requests that are rejected or time out"
        draft.problem(RETRIES, rule, None, "give workload.timeout or cluster.admission, or leave it out")
    if admission is None or workload.client is None or draft.problems.touch(RETRIES):
        return
    if retries is None or not retries.backoff_s:
        rule = "a closed-loop client that is rejected retries at once, endlessly"
        draft.problem(ADMISSION, rule, None, "give workload.retries with a backoff_s above 0")


def _check_timeout(draft: Draft, workload: Workload) -> None:
    timeout = workload.timeout
    if timeout is None or draft.problems.touch(TIMEOUT):
        return
    if timeout.ttft_s is None and timeout.e2e_s is None:
        draft.problem(TIMEOUT, "needs ttft_s, e2e_s or both", None, "for example {ttft_s: 10, e2e_s: 60}")
    elif timeout.ttft_s is not None and timeout.e2e_s is not None and timeout.ttft_s >= timeout.e2e_s:
        rule = f"must be less than e2e_s, {timeout.e2e_s:g}, or it never applies"
        draft.problem((*TIMEOUT, "ttft_s"), rule, timeout.ttft_s, "lower it, or leave it out")
