"""File formats, each read without trusting what a file claims."""
