"""What an autoscaler sees: samples that are visible, and none from the future."""

from simserve.state.pool_view import LONGEST_WINDOW_S, Signals
from tests.autoscalers.pools import WAITING, member, pool


def scraped(until_s: float) -> Signals:
    made = Signals()
    made.until_s = until_s
    for at_s, value in ((0, 1.0), (15, 2.0), (30, 3.0)):
        made.add(WAITING, at_s, value)
    return made


def test_a_scrape_is_seen_once_it_is_visible() -> None:
    assert [scraped(until_s).last(WAITING) for until_s in (0, 14.9, 15, 40)] == [1, 1, 2, 3]
    assert scraped(29).over(WAITING, 29) == [(15, 2)]


def test_a_sample_can_be_too_old() -> None:
    assert scraped(40).last(WAITING, since_s=29) == 3
    assert scraped(40).last(WAITING, since_s=30) is None
    assert Signals().last(WAITING) is None


def test_old_samples_are_forgotten() -> None:
    signals = scraped(LONGEST_WINDOW_S + 20)
    signals.add(WAITING, LONGEST_WINDOW_S + 20, 4.0)
    assert [value for _, value in signals.over(WAITING, 1e6)] == [3, 4]


def test_members_are_counted_by_what_they_do() -> None:
    view = pool([member({WAITING: 2}), member(phase="loading"), member(phase="pending")])
    assert (view.n_ready, view.last(WAITING)) == (1, [2])
