"""What touches Flower."""
