"""The version of simserve, below all that writes it into results."""

__version__ = "0.1.0"
