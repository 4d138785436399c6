"""Cases about reports on jobs: completion, refusals, admin verbs, progress, transactions."""
