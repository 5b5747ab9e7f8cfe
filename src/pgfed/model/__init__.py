"""A model as one flat vector, and the built-in networks."""
