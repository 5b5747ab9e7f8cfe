"""What a run leaves behind: its data model, its files, and what can be said of it."""
