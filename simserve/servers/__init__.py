"""Servers as they are started: command lines and deployments, with their logs, as scenarios."""
