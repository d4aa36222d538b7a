"""The gate on p99 goodput."""
