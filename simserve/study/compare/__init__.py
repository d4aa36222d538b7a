"""Comparisons of two sides, and which of them carries more load."""
