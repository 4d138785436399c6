"""Holding jobs while they run: renewed leases, the status board, and jobs that nothing works on."""
