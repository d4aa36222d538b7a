"""Resilience: what failures of one pool cost, and the fewest spares with which its error budget holds."""
