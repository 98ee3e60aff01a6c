"""Text in, text out: decoding with trained models (section 6.1)."""
