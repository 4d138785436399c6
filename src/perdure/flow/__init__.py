"""Jobs that wait for jobs: chains, groups, graphs, steps, events."""
