"""Comparisons in words and on pages."""
