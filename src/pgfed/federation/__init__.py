"""Real federations on Flower: the same algorithms, each site's data and state on its own disk."""
