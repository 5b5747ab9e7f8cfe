"""Speed and scale, as ratios measured in one run: `make bench`."""
