"""How soon the jobs of a dead host come back."""
