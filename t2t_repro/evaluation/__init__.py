"""Scores of a trained run."""
