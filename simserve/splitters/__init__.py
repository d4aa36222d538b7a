"""Splitters: which requests are prefilled apart, one file a policy."""
