"""Translation: text in, text out, scored by BLEU."""
