"""Who each admission policy lets in."""

from dataclasses import dataclass

import pytest

from simserve import plugins
from simserve.admission.base import Admission
from simserve.admission.predicted_ttft import PredictedTtft
from simserve.admission.queue_length import QueueLength
from simserve.admission.token_bucket import TokenBucket
from simserve.errors import PolicyError
from simserve.state.request import Request
from tests.doubles import MS


@dataclass
class Queue:
    """A replica as admission sees it."""

    n_outstanding: int = 0
    n_waiting: int = 0
    n_tokens: int = 0
    total_blocks: int = 100
    block_size: int = 16
    block_tokens: int | None = None
    id: int = 0

    def uncomputed_tokens(self) -> int:
        return self.n_tokens

    def blocks_for(self, n_tokens: int) -> int:
        return -(-n_tokens // self.block_size)

    def held_blocks(self) -> int:
        return 0

    def found_tokens(self, request: Request) -> int:
        return 0


def admits(policy: Admission, *queues: Queue, at_ms: float = 0, prompt_tokens: int = 10) -> bool:
    return policy.decide(Request(0, 0, prompt_tokens, 10), queues, round(at_ms * MS)) is None


def test_a_bucket_gives_out_its_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(rate_per_s=100, burst=2)
    bucket.begin()
    let_in = [at for at in (0, 0, 0, 9, 10, 11, 20) if admits(bucket, at_ms=at)]
    assert let_in == [0, 0, 10, 20]


def test_a_bucket_holds_no_more_than_its_burst_and_begins_each_run_full() -> None:
    bucket = TokenBucket(rate_per_s=100, burst=2)
    for _ in range(2):
        bucket.begin()
        assert [admits(bucket, at_ms=at) for at in (1000, 1000, 1000)] == [True, True, False]


def test_a_queue_is_full_when_every_replicas_is() -> None:
    policy = QueueLength(max_outstanding=3)
    assert admits(policy, Queue(3), Queue(2))
    assert not admits(policy, Queue(3), Queue(4))


def test_both_limits_of_a_queue_hold_at_one_replica() -> None:
    policy = QueueLength(max_waiting=1, max_outstanding=8)
    assert admits(policy, Queue(7, 0))
    assert not admits(policy, Queue(7, 1), Queue(8, 0))


def test_without_places_to_wait_only_those_enter_for_whom_nobody_waits() -> None:
    assert admits(QueueLength(max_waiting=0), Queue(5, 0))
    assert not admits(QueueLength(max_waiting=0), Queue(5, 1))


def test_a_first_token_is_predicted_from_the_prompt_tokens_before_it_and_its_own() -> None:
    policy = PredictedTtft(ttft_s=0.5, prefill_tokens_per_s=1000)
    assert admits(policy, Queue(n_tokens=300), prompt_tokens=200)
    assert not admits(policy, Queue(n_tokens=301), prompt_tokens=200)
    assert admits(policy, Queue(n_tokens=301), Queue(n_tokens=0), prompt_tokens=200)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "queue_length"}, "needs max_waiting or max_outstanding"),
        ({"kind": "queue_length", "max_outstanding": 0}, "max_outstanding: must be more than 0"),
        ({"kind": "token_bucket", "rate_per_s": 5, "burst": 0.5}, "burst: must be at least 1"),
        ({"kind": "predicted_ttft", "ttft_s": 1}, "prefill_tokens_per_s: is missing"),
        ({"kind": "token_buckt"}, "did you mean token_bucket?"),
    ],
)
def test_a_policy_that_is_written_wrong_is_a_mistake(spec: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        plugins.build("admission", spec)
    assert message in str(caught.value)
