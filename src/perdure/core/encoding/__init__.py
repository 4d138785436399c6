"""Values to JSON text and back, with a check of their size first."""
