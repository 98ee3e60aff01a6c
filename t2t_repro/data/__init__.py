"""Text in, batches out: where text comes from, its vocabulary, its preparation, and the pipeline to the trainer."""
