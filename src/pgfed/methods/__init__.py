"""The methods: what one is, the steps they share, and one file for each.

What a method of one's own needs can be imported from here: the contract, `sgd`, `Terms`, `Step`,
`Descent`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgfed.data.federation import Shard
    from pgfed.methods.averaging import Mean
    from pgfed.methods.contract import Algorithm, ClientInfo, FederationInfo, need_base
    from pgfed.methods.randomness import Rng, ServerRng
    from pgfed.methods.settings import TrainConfig
    from pgfed.methods.steps import NONE, Descent, Step, Terms, head_then_base, sgd
    from pgfed.methods.values import Kind, Message, State, Update
    from pgfed.model.layout import Layout
    from pgfed.model.task import Task

# Loaded on first use: torch takes seconds, and `pgfed methods` does not need it.
_HOMES = {
    "Algorithm": "pgfed.methods.contract",
    "ClientInfo": "pgfed.methods.contract",
    "Descent": "pgfed.methods.steps",
    "FederationInfo": "pgfed.methods.contract",
    "Kind": "pgfed.methods.values",
    "Layout": "pgfed.model.layout",
    "Mean": "pgfed.methods.averaging",
    "Message": "pgfed.methods.values",
    "NONE": "pgfed.methods.steps",
    "Rng": "pgfed.methods.randomness",
    "ServerRng": "pgfed.methods.randomness",
    "Shard": "pgfed.data.federation",
    "State": "pgfed.methods.values",
    "Step": "pgfed.methods.steps",
    "Task": "pgfed.model.task",
    "Terms": "pgfed.methods.steps",
    "TrainConfig": "pgfed.methods.settings",
    "Update": "pgfed.methods.values",
    "head_then_base": "pgfed.methods.steps",
    "need_base": "pgfed.methods.contract",
    "sgd": "pgfed.methods.steps",
}

__all__ = [
    "NONE",
    "Algorithm",
    "ClientInfo",
    "Descent",
    "FederationInfo",
    "Kind",
    "Layout",
    "Mean",
    "Message",
    "Rng",
    "ServerRng",
    "Shard",
    "State",
    "Step",
    "Task",
    "Terms",
    "TrainConfig",
    "Update",
    "head_then_base",
    "need_base",
    "sgd",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pgfed.methods' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
