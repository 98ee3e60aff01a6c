"""Beam search, and text in, text out (section 6.1)."""
