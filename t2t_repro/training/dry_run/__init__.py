"""Estimates of a training run, measured before it starts."""
