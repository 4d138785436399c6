"""Copies everything that one store holds to another store (`perdure promote`)."""
