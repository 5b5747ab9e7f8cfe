"""Data sets, partitions into clients, and the federation that the engines train on."""
