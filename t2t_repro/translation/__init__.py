"""The translation task: text to text, scored by BLEU."""
