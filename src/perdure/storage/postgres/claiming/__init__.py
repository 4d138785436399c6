"""Claims of jobs that are ready and under no limit."""
