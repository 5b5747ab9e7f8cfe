"""What outlives a process: files that are whole, checkpoints, the clients' states."""
