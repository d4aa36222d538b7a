"""The highest load that holds, in requests a second."""

import pytest

from simserve.study.capacity.boundary import Boundary
from simserve.study.capacity.point import LoadPoint
from simserve.study.intervals import Estimate
from tests.summaries import summary_of


def test_a_rate_lies_between_those_of_the_two_loads_though_part_of_what_comes_stays_as_it_is() -> None:
    below, above = (
        LoadPoint(1.0, (summary_of({"offered_per_s": 12.0}),)),
        LoadPoint(4.0, (summary_of({"offered_per_s": 27.0}),)),
    )
    result = Boundary(Estimate(2.0, 1.5, 3.0), below, above, below).offered_per_s
    # twice is half way from once to four times by logarithms, and so is 18 from 12 to 27
    assert (result.value, result.low, result.high) == pytest.approx((18.0, 13.5, 27.0))
