"""Personalized federated learning: one model per client, and what each client gained."""

__version__ = "0.1.0"
