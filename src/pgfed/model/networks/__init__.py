"""The models by name: the paper's CNN, an MLP, a linear one, others beside it; a user's factory.

A factory is any callable ``factory(input_shape, outputs) -> nn.Module``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pgfed.data.federation import Federation
from pgfed.errors import UserError, first_line, unknown
from pgfed.model.kinds import CLASSES
from pgfed.model.networks.gru import GRU
from pgfed.model.networks.resnet import ResNet18
from pgfed.model.networks.unet import SmallUNet
from pgfed.model.objectives import Objective
from pgfed.model.task import Task
from pgfed.modules import load_object

Factory = Callable[[tuple[int, ...], int], nn.Module]


class CNN(nn.Module):
    """The paper's network ("FedAvgCNN"): two 5x5 convolutions, two linear layers."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if len(input_shape) != 3 or min(input_shape[1:]) < 16:
            raise UserError(
                f"model.name: 'cnn' needs images of at least 16x16, the data is {input_shape}; "
                "use 'mlp'"
            )
        channels, height, width = input_shape
        self.conv1 = nn.Conv2d(channels, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        size = [((s - 4) // 2 - 4) // 2 for s in (height, width)]
        self.fc1 = nn.Linear(64 * size[0] * size[1], 512)
        self.fc2 = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        # Pooling before ReLU gives the same values with a quarter of the ReLU's work.
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        out: Tensor = self.fc2(F.relu(self.fc1(x.flatten(1))))
        return out


class MLP(nn.Module):
    """One hidden layer: for feature vectors and very small images."""

    chain = ("fc1", "fc2")

    def __init__(self, input_shape: tuple[int, ...], classes: int, hidden: int = 128) -> None:
        super().__init__()
        self.fc1 = nn.Linear(int(torch.Size(input_shape).numel()), hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.relu(self.fc1(x.flatten(1))))
        return out


class Linear(nn.Sequential):
    """One linear layer on all of a sample: logistic or linear regression."""

    chain = ("1",)

    def __init__(self, input_shape: tuple[int, ...], outputs: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(int(torch.Size(input_shape).numel()), outputs))


MODELS: dict[str, Factory] = {
    "cnn": CNN,
    "mlp": MLP,
    "linear": Linear,
    "resnet18": ResNet18,
    "gru": GRU,
    "unet-small": SmallUNet,
}
# Keys of [model] that only some take.
OPTIONS = {"norm": "resnet18", "vocabulary": "gru"}


def default_model(federation: Federation) -> str:
    """`unet-small` for masks, `gru` for tokens, `cnn` for images of at least 16x16, else `mlp`."""
    shape = federation.input_shape
    if federation.targets == "masks":
        return "unet-small"
    if federation.x.dtype == torch.int64:
        return "gru"
    return "cnn" if len(shape) == 3 and min(shape[1:]) >= 16 else "mlp"


def vocabulary(federation: Federation) -> int:
    """How many different tokens there can be, as far as the data tells."""
    low, high = (int(found) for found in federation.x.aminmax())
    if low < 0:
        raise UserError(f"{federation.name}: x holds the token {low}; allowed: integers from 0 on")
    return high + 1


def factory(name: str | Factory, options: Mapping[str, Any] | None = None) -> Factory:
    """The factory for a name of `MODELS`, ``package.module:factory`` or a callable.

    ``options`` are the keys of [model] that only some models take.
    """
    for key, value in (options or {}).items():
        if name != (only := OPTIONS.get(key)):
            raise UserError(
                f"model.{key}: found {value!r}; allowed with model.name = {only!r} only"
            )
    if callable(name):
        return name
    if ":" in name:
        made = load_object("model.name", name)
        if not callable(made):
            raise UserError(f"model.name: {name!r} is not callable")
        return made  # type: ignore[no-any-return]
    if name not in MODELS:
        raise unknown("model.name", name, [*MODELS, "package.module:factory"])
    return partial(MODELS[name], **options) if options else MODELS[name]


def make_task(
    name: str | Factory,
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    seed: int,
    example: Tensor | None = None,
    head: str | None = None,
    objective: Objective = CLASSES,
    device: torch.device | str = "cpu",
) -> Task:
    """Build the model with its weights drawn from ``seed``; the caller's random state is kept.

    ``example`` is two inputs to try it on (zeros where there are none).
    """
    make = factory(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module = make(input_shape, outputs)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"model: the factory {name!r} failed: {first_line(error)}") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"model: the factory {name!r} did not return an nn.Module")
    task = Task(module, input_shape, example=example, head=head, objective=objective, device=device)
    if task.outputs != outputs:
        raise UserError(f"model: returns {task.outputs} outputs, the data needs {outputs}")
    return task
