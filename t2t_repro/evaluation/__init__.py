"""Evaluation of trained runs: scores, reports and attention views."""
