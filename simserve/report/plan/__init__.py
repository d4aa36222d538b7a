"""Plans in words and on pages."""
