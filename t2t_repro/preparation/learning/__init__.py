"""Learning from text in preparation: the vocabulary and the shortlist."""
