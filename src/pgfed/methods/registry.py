"""The methods, by name. Importing this module does not import torch: each file is loaded on use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

from pgfed.errors import UserError, unknown
from pgfed.modules import load_object

if TYPE_CHECKING:
    from pgfed.methods.contract import Algorithm


class Entry(NamedTuple):
    """A registered method."""

    home: str  # module:class
    summary: str  # one line for `pgfed methods`, which does without torch


# The order is the order of tables.
METHODS = {
    "local": Entry(
        "local:Local",
        "baseline: every client trains on its own data only, in the same rounds as the methods",
    ),
    "fedavg": Entry("fedavg:FedAvg", "one model for all: the weighted mean of the clients' models"),
    "fedavg-local": Entry(
        "fedavg_local:FedAvgLocal",
        "control: FedAvg's common model, trained further by each client (PGFed with mu = 0)",
    ),
    "fedavg-ft": Entry(
        "fedavg_ft:FedAvgFT", "control: FedAvg fine-tuned on the client's own data to be scored"
    ),
    "fedavg-framed": Entry(
        "fedavg_framed:FedAvgFramed",
        "recommended: FedAvg in each client's class shares, blended with its own model",
    ),
    "feddyn": Entry(
        "feddyn:FedDyn", "one model for all: local objectives bent towards the common minimum"
    ),
    "pfedme": Entry(
        "pfedme:PFedMe", "a personal model on a leash to the common one (Moreau envelopes)"
    ),
    "fedfomo": Entry(
        "fedfomo:FedFomo", "each client mixes the models that lower its own validation loss"
    ),
    "apfl": Entry("apfl:APFL", "a mixture of an own model and the common one, both trained"),
    "fedrep": Entry(
        "fedrep:FedRep", "a common body under each client's own head, trained in turns"
    ),
    "lg-fedavg": Entry("lg_fedavg:LGFedAvg", "each client's own body under a common head"),
    "fedper": Entry(
        "fedper:FedPer", "a common body under each client's own head, trained together"
    ),
    "per-fedavg": Entry(
        "per_fedavg:PerFedAvg", "one model for all, meta-learned to be adapted by one gradient step"
    ),
    "fedrod": Entry(
        "fedrod:FedRoD", "a generic model for balanced classes, plus each client's own linear head"
    ),
    "fedbabu": Entry(
        "fedbabu:FedBABU",
        "a common body trained under a fixed random head, fine-tuned to be scored",
    ),
    "pgfed": Entry(
        "pgfed:PGFed", "each client's objective holds the others' risks, weighed by learned alphas"
    ),
    "pgfed-mo": Entry("pgfed_mo:PGFedMo", "PGFed with momentum on the auxiliary gradient"),
    "pgfed-ce": Entry(
        "pgfed_ce:PGFedCE", "PGFed with a fifth less traffic: alphas step along a constant gradient"
    ),
    "fedprox": Entry("fedprox:FedProx", "FedAvg whose clients are held near the common model"),
    "scaffold": Entry(
        "scaffold:Scaffold", "one model for all: control variates take out the clients' drift"
    ),
    "moon": Entry(
        "moon:Moon",
        "one model for all: features are drawn towards the common model's",
    ),
    "fedpac": Entry(
        "fedpac:FedPAC", "a common body with classes drawn together, heads combined to fit"
    ),
    "fedbn": Entry("fedbn:FedBN", "FedAvg of all but the normalisation layers, which stay"),
    "fedala": Entry("fedala:FedALA", "each client learns what of the common head to take over"),
    "ifca": Entry("ifca:IFCA", "several common models; each client trains the one that fits it"),
    "fedamp": Entry("fedamp:FedAMP", "each client is pulled towards a mixture of those like it"),
    "ditto": Entry(
        "ditto:Ditto", "FedAvg, and at home a personal model on a leash to what is received"
    ),
    "apple": Entry("apple:Apple", "each client learns how much of every other's core to take"),
    "mr-mtl": Entry("mr_mtl:MRMTL", "each client's own model, pulled towards the mean of them all"),
}
BASELINE = "local"  # the paper's, trained in the same rounds as the methods
ALONE = "alone"  # the one that a site would choose

# What methods are held against; nobody federates with these.
REFERENCES = {
    ALONE: Entry(
        "alone:Alone",
        "baseline: every client trains on its own data only, for as long as that helps it",
    ),
    "pooled": Entry("pooled:Pooled", "bound: one model on all data together (simulation only)"),
    "pooled-ft": Entry(
        "pooled_ft:PooledFT", "bound: the same fine-tuned at each client (simulation only)"
    ),
}
NAMES = METHODS | REFERENCES


def get(name: str) -> type[Algorithm]:
    """The class of a registered method, or of a user's own ``package.module:Class``."""
    if ":" in name:
        from pgfed.methods.contract import Algorithm

        found = load_object("methods", name)
        if not (isinstance(found, type) and issubclass(found, Algorithm)):
            raise UserError(f"methods: {name!r} is not a subclass of pgfed.Algorithm")
        return found
    if name not in NAMES:
        raise unknown("methods", name, NAMES)
    module, _, cls = NAMES[name].home.partition(":")
    return getattr(importlib.import_module(f"pgfed.methods.{module}"), cls)  # type: ignore[no-any-return]


def folder(name: str) -> str:
    """The name of the method's folder in a run: the class name in lower case for a user's own."""
    return name.partition(":")[2].lower() if ":" in name else name


def summary(name: str) -> str:
    """What a method does, in one line."""
    return NAMES[name].summary if name in NAMES else get(name).summary
