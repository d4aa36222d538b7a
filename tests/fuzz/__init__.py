"""Mutants of every shipped scenario and every input format: whatever is read, a command ends with 0 or 2, and soon."""
