"""Capacity of a scenario: its highest rate or concurrency, its fewest replicas, its best prefill:decode split."""
