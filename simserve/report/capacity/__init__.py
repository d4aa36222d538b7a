"""Capacities in words and on pages."""
