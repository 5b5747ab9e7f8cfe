"""Models that are kept, and what is known of them."""
