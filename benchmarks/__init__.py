"""Speed and scale, as ratios measured in one run: `make bench`, or one part: `-m benchmarks.speed`.

A part is a module with `run()`, which yields its report line by line.
"""
