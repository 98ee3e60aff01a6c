"""Preparation of corpora as shards: downloads, filters, vocabulary, encoding and the global shuffle."""
