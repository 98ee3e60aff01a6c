"""A module for each contestant of `benchmarks.train`, which runs it in an environment of its own."""
