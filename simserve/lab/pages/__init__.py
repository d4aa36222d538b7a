"""The pages of the laboratory."""
