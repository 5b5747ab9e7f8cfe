"""What states, messages and updates are: flat dictionaries, and the kinds of their entries."""

from __future__ import annotations

from typing import Any, Literal

# Flat dictionaries: string keys; values are tensors, ints or floats. Nothing nested.
State = dict[str, Any]  # what the server, or one client, keeps between rounds
Message = dict[str, Any]  # what the server sends to a client
Update = dict[str, Any]  # what a client sends back: all that ever leaves it

# What one entry of an Update is. It fixes the entry's shape, is checked on arrival, and says in
# `pgfed methods --show` what leaves a site.
Kind = Literal[
    "model",  # the shared part of a model
    "own",  # the rest of it
    "step",  # how far the shared part has moved
    "gradient",  # of the shared part, without buffers
    "scalar",
    "row",  # one number for each client of the last round
    "count",  # of samples
    "index",  # one of a method's few choices
    "classes",  # one number for each class
    "prototypes",  # a vector of features for each class
]
