"""What Perdure reports about itself: log lines, workers, scaling hints."""
