"""Beam search whose translations contain required terms."""
