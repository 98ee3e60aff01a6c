"""Registered problems, one or more per module."""
