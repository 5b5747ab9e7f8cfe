"""Data sets, partitions into clients, and the federation that the engines train on."""

# Where neither the experiment nor the data says how many. Here, as nothing heavy is imported.
DEFAULT_CLIENTS = 20
