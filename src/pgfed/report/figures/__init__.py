"""The interactive figures of a report."""
