"""Constituency parsing (section 6.3): trees, linearization, treebanks, constrained decoding and EVALB."""
