"""Rounds of other programs, each in a process of its own that `benchmarks.peers` starts."""
