"""How much a scenario can take: rates, concurrency, replicas, and splits of prefill and decode."""
