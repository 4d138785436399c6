"""The shapes of documents, listings and export."""
