"""Claims: which jobs a worker gets."""
