"""Checks in words and on pages."""
