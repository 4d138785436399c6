"""What Perdure tells about itself."""
