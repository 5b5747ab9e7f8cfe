"""Figures as files, for papers and slides."""
