"""Data sets, partitions into clients, and the federation that the engines train on."""

# Own data is named KIND:PATH: the module of each kind, whose `samples` reads it.
READERS = {
    "npz": "pgfed.data.files.npz",
    "folder": "pgfed.data.files.folder",
    "csv": "pgfed.data.tables.samples",
    "parquet": "pgfed.data.tables.samples",
}
OWN = [f"{kind}:PATH" for kind in READERS]

# Where neither the experiment nor the data says how many. Here, as nothing heavy is imported.
DEFAULT_CLIENTS = 20
