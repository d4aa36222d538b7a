"""Kills at random instants of every command that writes: the earlier result or the new one, and never a part."""
