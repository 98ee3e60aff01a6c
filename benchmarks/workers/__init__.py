"""A module for each contestant of `benchmarks.train`, which runs it in its own environment."""
