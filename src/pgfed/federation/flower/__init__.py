"""What touches Flower: its messages, its interface for sites, and who may come near that."""

import os

# Read by Flower when it is first imported: no telemetry, no look for updates, no installing.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
os.environ.update(QUIET)
