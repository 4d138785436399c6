"""The store for MongoDB (replica sets, from version 5.0)."""
