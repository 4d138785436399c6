"""The store in memory. It is the specification of the storage contract, and serves tests."""
