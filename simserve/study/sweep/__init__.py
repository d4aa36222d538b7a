"""One scenario at many points."""
