"""The command line: one file a command, which parses, calls and prints. What it prints is computed elsewhere."""
