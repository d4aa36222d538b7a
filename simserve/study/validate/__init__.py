"""Validation of predictions against real servers."""
