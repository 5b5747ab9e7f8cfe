"""The methods, by name. Importing this module does not import torch: each file is loaded on use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pgfed.errors import UserError, unknown

if TYPE_CHECKING:
    from pgfed.methods.contract import Algorithm

# name -> module:class; the order is the order of tables.
METHODS = {
    "local": "local:Local",
    "fedavg": "fedavg:FedAvg",
    "fedavg-local": "fedavg_local:FedAvgLocal",
    "fedavg-ft": "fedavg_ft:FedAvgFT",
    "feddyn": "feddyn:FedDyn",
    "pfedme": "pfedme:PFedMe",
    "fedfomo": "fedfomo:FedFomo",
    "apfl": "apfl:APFL",
    "fedrep": "fedrep:FedRep",
    "lg-fedavg": "lg_fedavg:LGFedAvg",
    "fedper": "fedper:FedPer",
    "per-fedavg": "per_fedavg:PerFedAvg",
    "fedrod": "fedrod:FedRoD",
    "fedbabu": "fedbabu:FedBABU",
    "pgfed": "pgfed:PGFed",
    "pgfed-mo": "pgfed_mo:PGFedMo",
    "pgfed-ce": "pgfed_ce:PGFedCE",
}


def get(name: str) -> type[Algorithm]:
    """The class of a registered method, or of a user's own ``package.module:Class``."""
    if ":" in name:
        from pgfed.methods.contract import Algorithm
        from pgfed.model.networks import load_object

        found = load_object("methods", name)
        if not (isinstance(found, type) and issubclass(found, Algorithm)):
            raise UserError(f"methods: {name!r} is not a subclass of pgfed.Algorithm")
        return found
    if name not in METHODS:
        raise unknown("methods", name, METHODS)
    module, _, cls = METHODS[name].partition(":")
    return getattr(importlib.import_module(f"pgfed.methods.{module}"), cls)  # type: ignore[no-any-return]


def folder(name: str) -> str:
    """The name of the method's folder in a run: the class name in lower case for a user's own."""
    return name.partition(":")[2].lower() if ":" in name else name
