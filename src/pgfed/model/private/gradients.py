"""The gradient of each unit by itself, summed up with a weight for each.

All at once by `torch.func.vmap` where the model is small and vmap gives what single passes give;
otherwise one backward pass per unit. The choice is fixed by the model alone: one that was timed
would change bits between machines, one that looked at samples would depend on them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from pgfed.errors import NOTES
from pgfed.model.flat import Entry, Stepped
from pgfed.model.private.units import Units
from pgfed.model.task import Beside, Task

LARGEST = 200_000  # parameters, up to which vmap pays
NUMBERS = 2**23  # of single gradients, held at a time
AGREES = 1e-4  # how near vmap must come to single passes
HUGE = 1e30  # a gradient beyond this cannot be scaled in single precision: it counts as nothing

Losses = Callable[[Tensor, Tensor], Tensor]  # of outputs and targets, one number per sample


@dataclass(frozen=True)
class Piece:
    """Some units: the length of each one's gradient, its loss, and the gradients themselves."""

    norms: Tensor  # float64
    losses: Tensor  # float64
    # (weights, out): add the weighted sum to out, in float64. In single precision what one unit
    # changes of a long sum is rounded anew with every unit after it, and may grow beyond its bound
    # (Casacuberta et al., CCS 2022).
    add: Callable[[Tensor, Tensor], None]

    @property
    def sound(self) -> Tensor:
        """Which units count; what is not finite contributes nothing."""
        return (self.norms < HUGE) & self.losses.isfinite()


def pieces(
    task: Task,
    theta: Tensor,
    units: Units,
    chosen: Tensor,
    *,
    part: Stepped = "all",
    training: bool = True,
    beside: Beside | None = None,
    losses: Losses | None = None,
    change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
) -> Iterator[Piece]:
    """The gradients of the chosen units at ``theta``, some at a time."""

    def framed(outputs: Tensor, targets: Tensor) -> Tensor:
        return task.objective.losses(task.framed(outputs), targets)

    each = losses or framed
    change = change or (lambda x, y: (x, y))
    if units.groups is None and beside is None and by_vmap(task):
        step = max(1, NUMBERS // max(1, task.d))
        for index in torch.split(chosen, step):
            if len(index):
                x, y = change(*units.shard.batch(index))
                yield _together(task, theta, x, y, part, training, each)
        return
    scratch = torch.zeros(task.d, device=task.device)
    for unit in chosen.tolist():
        x, y = change(*units.shard.batch(units.rows(unit)))
        yield _single(task, theta, x, y, part, training, each, scratch, beside)


def _single(
    task: Task,
    theta: Tensor,
    x: Tensor,
    y: Tensor,
    part: Stepped,
    training: bool,
    losses: Losses,
    scratch: Tensor,
    beside: Beside | None = None,
) -> Piece:
    """Of one unit, whose rows are a batch."""
    others = [task.features(model, x) for model in beside.models] if beside else []
    task._bind(theta, scratch.zero_(), part, training)
    if beside is None:
        loss = losses(task.module(x), y).mean()
    else:
        z = task._before_head(x)
        outputs = task.module.get_submodule(task.head_name)(z)
        loss = (losses(outputs, y) + beside.losses(z, y, *others)).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.linalg.vector_norm(scratch, dtype=torch.float64)

    def add(weights: Tensor, out: Tensor) -> None:
        if weight := float(weights[0]):
            out.add_(scratch, alpha=weight)

    return Piece(norm[None], loss.detach().double()[None], add)


def _together(
    task: Task,
    theta: Tensor,
    x: Tensor,
    y: Tensor,
    part: Stepped,
    training: bool,
    losses: Losses,
) -> Piece:
    """Of several rows at once."""
    task._bind(theta, None, part, training)
    entries = task.entries(part)
    values = {e.names[0]: e.view(theta) for e in entries}

    def loss_of(named: dict[str, Tensor], one: Tensor, target: Tensor) -> Tensor:
        outputs = functional_call(task.module, named, (one[None],))
        return losses(outputs, target[None]).mean()

    found, values_of = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0), randomness="different")(
        values, x, y
    )
    gradients = [found[e.names[0]].detach() for e in entries]
    squares = sum(
        torch.linalg.vector_norm(g.flatten(1), dim=1, dtype=torch.float64).square()
        for g in gradients
    )
    norms = torch.as_tensor(squares).sqrt()

    def add(weights: Tensor, out: Tensor) -> None:
        _add(entries, gradients, weights, out)

    return Piece(norms, values_of.detach().double(), add)


def _add(entries: list[Entry], gradients: list[Tensor], weights: Tensor, out: Tensor) -> None:
    nothing = weights == 0
    for e, g in zip(entries, gradients, strict=True):
        if bool(nothing.any()):
            g[nothing] = 0.0  # what is not finite stays so when multiplied by 0
        e.view(out).add_(torch.tensordot(weights.to(out), g.to(out), dims=1))


# -- which way ---------------------------------------------------------------------------------

_chosen: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def by_vmap(task: Task) -> bool:
    """Whether this model's gradients are taken all at once."""
    if task.module not in _chosen:
        _chosen[task.module] = task.d <= LARGEST and _agrees(task)
    return _chosen[task.module]


def _agrees(task: Task) -> bool:
    """Try both ways on two made-up samples."""
    x, y = made_up(task, 2)
    theta = task.initial()
    losses = task.objective.losses
    whole, single = torch.zeros(task.d, device=x.device), torch.zeros(task.d, device=x.device)
    weights = torch.tensor([1.0, -0.5], device=x.device)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _together(task, theta, x, y, "all", False, losses).add(weights, whole)
    except Exception:  # whatever vmap says to a layer that it cannot batch
        NOTES.info(f"per-sample gradients one by one: {_culprit(task.module)}")
        return False
    scratch = torch.zeros_like(whole)
    for k in range(2):
        one = _single(task, theta, x[k : k + 1], y[k : k + 1], "all", False, losses, scratch)
        one.add(weights[k : k + 1], single)
    close = torch.allclose(whole, single, rtol=AGREES, atol=AGREES)
    if not close:
        NOTES.info(f"per-sample gradients one by one: {_culprit(task.module)}")
    return close


def made_up(task: Task, n: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the right form, which tell of no sample."""
    shape = (n, *task.input_shape)
    x = torch.zeros(shape, dtype=task.input_type)
    if task.input_type.is_floating_point:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    kind = task.objective.targets
    if kind == "classes":
        y = torch.arange(n) % task.outputs
    elif kind == "masks":
        y = torch.zeros(n, *task.input_shape[1:], dtype=torch.int64)
    else:
        y = torch.zeros(n, task.outputs)
    return x.to(task.device), y.to(task.device)


def _culprit(module: nn.Module) -> str:
    """The layer that is known not to go with vmap, else the model."""
    for part in module.modules():
        if isinstance(part, nn.RNNBase):
            return f"nn.{type(part).__name__}"
    return type(module).__name__
