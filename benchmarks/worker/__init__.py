"""What the worker itself does, on every store: slots, processes, pickup, renewals, idleness, limits."""
