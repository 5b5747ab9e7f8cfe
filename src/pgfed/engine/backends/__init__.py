"""Where clients' work is done."""
