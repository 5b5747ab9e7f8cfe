"""Who gained, and how surely: client by client, from what the kept models gave for each sample."""
