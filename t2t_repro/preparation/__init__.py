"""Corpora in, shards out: downloads, filters, the vocabulary, encoding and the global shuffle."""
