"""Cases about claims and holds: claim order, limits, fairness, leases."""
