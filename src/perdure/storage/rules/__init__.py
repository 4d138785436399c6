"""Rules that all stores share: pure functions on records, limits, fairness and filters."""
