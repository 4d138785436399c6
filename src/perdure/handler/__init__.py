"""What a task's function uses while it runs."""
