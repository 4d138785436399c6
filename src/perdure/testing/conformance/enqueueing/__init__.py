"""Cases about storing jobs: enqueue, unique keys, bounded queues, text fidelity."""
