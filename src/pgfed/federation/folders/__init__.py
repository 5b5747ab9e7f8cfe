"""What lies on disk at the server and at a site: settings, keys, models."""
