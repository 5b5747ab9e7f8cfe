"""What privacy costs: accounting, and plans of what will be released."""
