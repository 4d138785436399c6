"""Data and rules of jobs: pure, without any input or output."""
