"""Encodes text with the vocabulary: training text, which is shuffled, and the text that is scored."""
