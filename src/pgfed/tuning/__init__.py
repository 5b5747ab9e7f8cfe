"""Before a run: which settings, how long, how fast."""
