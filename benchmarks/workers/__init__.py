"""One module a contestant of `benchmarks.train`: each runs in its own environment, and imports nothing of the others."""
