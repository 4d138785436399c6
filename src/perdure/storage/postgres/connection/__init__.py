"""Connections to the server: addresses, pools, errors, signals, health."""
