"""What a scenario means before it runs."""
