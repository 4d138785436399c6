"""Reading: records made of what the keys hold, listings, exports, and rows that cannot be read."""
