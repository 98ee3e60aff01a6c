"""The processor, processes, memory and log that the library runs with. Standard library alone."""
