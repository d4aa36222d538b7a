"""Capacity answers on the terminal and on pages."""
