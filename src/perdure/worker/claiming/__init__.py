"""Claiming jobs: how many to ask for, the exchange with the store, and what happens when no answer comes."""
