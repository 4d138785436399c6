"""Cases about reading and administration: listings, queues, workers, transfer, signals, open and close."""
