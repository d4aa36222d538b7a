"""Requests and replicas as a trace for Perfetto."""
