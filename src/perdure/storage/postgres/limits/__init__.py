"""Claims of jobs under limits."""
