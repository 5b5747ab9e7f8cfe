"""The page, whole, while a run goes on, and of one site."""
