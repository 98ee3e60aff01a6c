"""Filters over the whole training text: which pairs they drop, duplicates, and the overlap with other splits."""
