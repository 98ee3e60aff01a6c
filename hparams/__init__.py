"""Hyperparameter sets: each module here registers some."""
