"""Splitters: which requests are prefilled remotely, one file per policy."""
