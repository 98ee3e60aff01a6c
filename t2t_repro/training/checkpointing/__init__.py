"""Checkpoints: written, found again, averaged, and taken from another run."""
