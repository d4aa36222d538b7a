"""Predictions held against what real servers did."""
