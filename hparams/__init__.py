"""Registered hyperparameter sets, one or more per module."""
