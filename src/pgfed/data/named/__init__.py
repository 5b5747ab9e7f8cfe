"""Readers of single data sets that are known by name."""
