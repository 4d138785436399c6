"""What upkeep does: lapsed leases, retention, inspection, documents that cannot be read."""
