"""The run folder: what a run leaves behind. See docs/run-folder in the README for its layout."""
