"""Experiments of the paper that are not plain runs."""
