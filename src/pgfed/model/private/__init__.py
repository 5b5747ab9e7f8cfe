"""A client's view of the task under privacy: the only ways in which samples reach what is sent.

`view.py` has the two primitives, the noisy gradient of a random draw and the noisy sum over all
units; `units.py` what a unit is, `gradients.py` the gradient of each, `noise.py` where random
numbers come from, `checks.py` which models cannot be trained so.
"""
