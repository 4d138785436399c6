"""What a claim takes, and how claims of several workers keep out of each other's way."""
