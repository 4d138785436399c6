"""How the store reaches its server: address, client, operations, errors, clock and signals."""
