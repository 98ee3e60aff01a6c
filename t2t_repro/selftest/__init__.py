"""Self-test: describes the machine, checks its results, measures its speed, and recommends options."""
