"""What Holdfast tells about itself."""
