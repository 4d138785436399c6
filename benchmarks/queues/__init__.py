"""What a claim costs with few queues and with very many."""
