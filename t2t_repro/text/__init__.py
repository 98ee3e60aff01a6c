"""Files of text: lines, translation memories, and the token ids that every vocabulary has."""
