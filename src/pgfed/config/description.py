"""A method in plain words: its settings, what leaves a site, and what the server can see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgfed.config.settings import Parameter, parameters
from pgfed.methods.settings import TrainConfig
from pgfed.methods.values import Kind

if TYPE_CHECKING:
    from pgfed.methods.contract import Algorithm

# What an entry of an Update is, by its kind; of a model also by the part that is shared.
LEAVES = {
    "model": "its whole trained model",
    "body": "its trained model without the classifier",
    "head": "its trained classifier (the last layer)",
    "part": "the shared part of its trained model",
    "rest": "the part of its trained model that is not shared",
    "index": "which of a few choices it made",
    "classes": "one number for each class, as how many training samples it has of it",
    "prototypes": "the mean features of each class",
    "step": "how far its training has moved its model",
    "gradient": "the gradient of its loss over its training data",
    "scalar": "one number",
    "row": "one number for each client of the last round",
    "count": "how many training samples it has",
}
# What can be learned from it, for the kinds where that is not plain.
SEES = {
    "part": "the shared part of each client's model, and so how that client's data changed it",
    "rest": "the own part of each client's model",
    "index": "which clients are alike",
    "classes": "how much of each class a client has",
    "prototypes": "what the samples of each class look like on average",
    "model": "each client's model, and so how training on that client's data changed it",
    "body": "the body of each client's model, and so how that client's data changed it",
    "head": "each client's classifier, whose rows show which classes the client has",
    "step": "how training on each client's data changed its model, and so in the end the model",
    "gradient": "each client's own gradient, from which training samples can partly be rebuilt",
    "scalar": "numbers that tell how well a client's model fits its data",
    "row": "how strongly each client weighs the others",
    "count": "how much data each client has",
}


def settings(cls: type[Algorithm]) -> tuple[list[Parameter], list[Parameter]]:
    """The method's own fields, and those of local training."""
    return parameters(cls), parameters(TrainConfig)


def leaving(cls: type[Algorithm]) -> list[str]:
    """What leaves a client in each round it takes part in."""
    return [f"{key}: {LEAVES[_what(kind, cls.shared)]}" for key, kind in cls.leaves.items()]


def leaving_once(cls: type[Algorithm]) -> list[str]:
    """What leaves each client after the last round, where the global model needs it."""
    return [f"{key}: {LEAVES[_what(kind, cls.shared)]}" for key, kind in _shares(cls).items()]


def seen(cls: type[Algorithm]) -> list[str]:
    """What the server can see."""
    kinds = [*cls.leaves.values(), *_shares(cls).values()]
    return [SEES[what] for what in dict.fromkeys(_what(kind, cls.shared) for kind in kinds)]


def _shares(cls: type[Algorithm]) -> dict[str, Kind]:
    """Without an own part, nobody is asked for it."""
    return {} if cls.shared == "all" and "own" in cls.shares.values() else cls.shares


def _what(kind: Kind, shared: str) -> str:
    """A kind, with the part of the model that it is of."""
    own = {"all": "", "body": "head", "head": "body"}
    if kind == "model":
        return {"all": "model", "body": "body", "head": "head"}.get(shared, "part")
    if kind == "own":
        return own.get(shared, "rest")
    return kind


def default(parameter: Parameter) -> str:
    """A default as the experiment file would spell it."""
    value: Any = parameter.default
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else "–" if value is None else f"{value}"
