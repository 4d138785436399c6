"""Cases about jobs that wait for other jobs, and about kv entries."""
