"""Sweeps in words and on pages."""
