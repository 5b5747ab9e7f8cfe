"""A method in plain words: its settings, what leaves a site, and what the server can see."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pgfed.config.experiment import Train
from pgfed.config.settings import Parameter, parameters

if TYPE_CHECKING:
    from pgfed.methods.contract import Algorithm

# What an entry of an Update is, by its kind.
LEAVES = {
    "model": "its whole trained model",
    "body": "its trained model without the classifier",
    "head": "its trained classifier (the last layer)",
    "gradient": "the gradient of its loss over its training data",
    "scalar": "one number",
    "row": "one number for each client of the last round",
    "count": "how many training samples it has",
}
# What can be learned from it, for the kinds where that is not plain.
SEES = {
    "model": "each client's model, and so how training on that client's data changed it",
    "body": "the body of each client's model, and so how that client's data changed it",
    "head": "each client's classifier, whose rows show which classes the client has",
    "gradient": "each client's own gradient, from which training samples can partly be rebuilt",
    "scalar": "numbers that tell how well a client's model fits its data",
    "row": "how strongly each client weighs the others",
    "count": "how much data each client has",
}


def settings(cls: type[Algorithm]) -> tuple[list[Parameter], list[Parameter]]:
    """The method's own fields, and those of local training with the bounds of [train]."""
    from pgfed.methods.settings import TrainConfig

    bounds = Train.model_fields
    shared = [replace(p, type=Annotated[p.type, bounds[p.name]]) for p in parameters(TrainConfig)]
    return parameters(cls), shared


def leaving(cls: type[Algorithm]) -> list[str]:
    """What leaves a client in each round it takes part in."""
    return [f"{key}: {LEAVES[kind]}" for key, kind in cls.leaves.items()]


def leaving_once(cls: type[Algorithm]) -> list[str]:
    """What leaves each client after the last round, where the global model needs it."""
    return [f"{key}: {LEAVES[kind]}" for key, kind in cls.shares.items()]


def seen(cls: type[Algorithm]) -> list[str]:
    """What the server can see."""
    kinds = [*cls.leaves.values(), *cls.shares.values()]
    return [SEES[kind] for kind in dict.fromkeys(kinds)]


def default(parameter: Parameter) -> str:
    """A default as the experiment file would spell it."""
    value: Any = parameter.default
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else "–" if value is None else f"{value}"
