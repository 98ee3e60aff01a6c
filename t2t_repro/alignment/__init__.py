"""Word alignments: the head that aligns, and the words of subwords."""
