"""What the commands print, and how a run goes on meanwhile."""
