"""Parts that all programs share: flags, reading and writing of lines, one-line errors, exit codes, completion."""
