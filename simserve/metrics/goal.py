"""What is asked of a cluster: one number, apart, so that who needs no arrays need not load them."""

GOAL_FRAC = 0.99
"""Share of requests that should meet every SLO: that of p99 goodput (DistServe, OSDI '24, asks 90 %)."""
