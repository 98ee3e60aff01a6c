"""Code shared by all programs: flags, line input and output, one-line errors, exit codes, completion."""
