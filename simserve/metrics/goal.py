"""What is asked of a cluster and of a run: numbers, apart, so that who needs no arrays need not load them."""

GOAL_FRAC = 0.99
"""Share of requests that should meet every SLO: that of p99 goodput (DistServe, OSDI '24, asks 90 %)."""

FEW_FOR_P99 = 1000
"""Below so many requests a p99 rests on fewer than ten of them, and is a guess."""

FEW_FOR_P999 = 10_000
"""Likewise for a p99.9."""
