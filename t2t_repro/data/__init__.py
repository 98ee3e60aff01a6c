"""Prepared data: records, shards, vocabulary, and the input pipeline that makes batches."""
