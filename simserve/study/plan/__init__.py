"""From a demand to a fleet."""
