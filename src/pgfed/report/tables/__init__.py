"""The tables of a report, by what their rows are about."""
