"""SQLite, the embedded store: durable without a server."""
