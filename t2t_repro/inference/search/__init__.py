"""Beam search and sampling: the decoding loop and its strategies."""
