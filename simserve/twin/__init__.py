"""A twin of a server: its command line, or the file that deploys it, and its log as a scenario with a fit."""
