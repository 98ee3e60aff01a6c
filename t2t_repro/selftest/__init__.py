"""The self-test of a machine: what it has, whether it computes right, how fast, and which options suit it."""
