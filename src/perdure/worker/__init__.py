"""The worker: claims jobs, runs them, says what became of them."""
