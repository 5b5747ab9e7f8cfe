"""The run folder: where things are in it, how they are written and read."""
