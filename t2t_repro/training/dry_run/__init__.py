"""Dry run: estimates a training run before it starts."""
