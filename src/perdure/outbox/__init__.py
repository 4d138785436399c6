"""Moving jobs from callers' databases to the store that runs them."""
