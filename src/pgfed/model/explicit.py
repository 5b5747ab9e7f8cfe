"""A chain of linear layers without autograd: outputs, and the gradient written out. For small
models a step costs what autograd costs, not its arithmetic.

The same kernels in the same order as autograd's, so the same bits (`tests/model/test_explicit.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pgfed.model.flat import Entry, Stepped

_UNTOLD = torch.tensor(torch.nan)
_relu_backward = torch.ops.aten.threshold_backward.default


def chain_of(module: nn.Module, entries: Sequence[Entry]) -> Chain | None:
    """For a module whose class itself says ``chain``, the names of its linear layers in order:
    flattened input, ReLU between them. None for any other, or where one is frozen or hooked."""
    names: Sequence[str] = vars(type(module)).get("chain", ())
    wanted = [(f"{name}.{kind}",) for name in names for kind in ("weight", "bias")]
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    if not names or hooked or [e.names for e in entries] != wanted:
        return None
    return Chain(entries)


class Chain:
    """Its entries are (weight, bias) of each layer, the last of which is the head.

    A vector may also be a stack of several models' (models x d), then inputs and targets have their
    models in front, too: small models cost calls, and a call for all costs little more than one.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._theta = self._out = torch.empty(0)
        self._layers: list[tuple[Tensor, Tensor]] = []  # (weight transposed, bias)
        self._gradients: list[tuple[Tensor, Tensor]] = []
        self._told = True  # whether losses are
        # Of the last size of a batch and weights of the classes.
        self._slopes: tuple[int, Tensor | None, Tensor] = (0, None, torch.empty(0))

    @contextmanager
    def unnoted(self) -> Iterator[None]:
        """Without what torch notes for autograd, and without losses: a tenth of a step, which
        nobody looks at."""
        self._told = False
        try:
            with torch.inference_mode():
                yield
        finally:
            self._told = True

    def features(self, theta: Tensor, x: Tensor) -> Tensor:
        """What the head is given."""
        z = x.flatten(1)
        for weight, bias in self._at(theta)[:-1]:
            z = torch.addmm(bias, z, weight).relu_()
        return z

    def head(self, theta: Tensor, z: Tensor) -> Tensor:
        """The head's outputs for given features."""
        weight, bias = self._at(theta)[-1]
        return torch.addmm(bias, z, weight)

    def outputs(self, thetas: Tensor, x: Tensor) -> Tensor:
        """Of a stack of models, each for all of the samples: models x samples x outputs."""
        z = x.flatten(1).expand(len(thetas), -1, -1)
        *hidden, (weight, bias) = self._at(thetas)
        for to_next, added in hidden:
            z = torch.baddbmm(added, z, to_next).relu_()
        return torch.baddbmm(bias, z, weight)

    def add_gradient(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        out: Tensor,
        part: Stepped,
        *,
        offset: Tensor | None = None,
        weights: Tensor | None = None,
        features: bool = False,
    ) -> Tensor:
        """Add the gradient of the batch's mean cross-entropy to ``out``; return the loss, of
        several models their mean; NaN where none is wanted (`unnoted`).

        ``offset`` is added to the outputs; ``weights`` multiply the losses of their classes'
        samples; with ``features`` the inputs are those of the head.
        """
        layers = self._at(theta)
        if out is not self._out:
            self._out, self._gradients = out, self._pairs(out)
        one = theta.dim() == 1
        linear, product = (torch.addmm, torch.mm) if one else (torch.baddbmm, torch.bmm)
        last = len(layers) - 1
        inputs = [x] if features else [x.flatten(theta.dim())]
        for weight, bias in [] if features else layers[:-1]:
            inputs.append(linear(bias, inputs[-1], weight).relu_())
        weight, bias = layers[last]
        outputs = linear(bias, inputs[-1], weight)
        logs = torch.log_softmax(outputs if offset is None else outputs + offset, -1)
        targets = y if one else y.flatten()
        g = self._slope(logs, weights).index_select(0, targets)  # the derivative by the logarithms
        g = torch._log_softmax_backward_data(g.view_as(logs), logs, -1, logs.dtype)
        for i in range(last, -1, -1):
            z = inputs.pop()
            if part == "all" or (part == "head") == (i == last):
                to_weight, to_bias = self._gradients[i]
                to_weight.add_(product(g.mT, z))
                to_bias.add_(g.sum(-2))
            if part == "head" or not i:
                break
            g = _relu_backward(product(g, layers[i][0].mT), z, 0)
        if not self._told:
            return _UNTOLD
        if not one:
            logs = logs.flatten(0, 1)
        if weights is None:
            return F.nll_loss(logs, targets)
        return F.nll_loss(logs, targets, weights, reduction="none").mean()

    def _at(self, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        if theta is not self._theta:
            several = theta.dim() > 1
            self._theta = theta
            self._layers = [
                (weight.mT, bias[:, None] if several else bias)
                for weight, bias in self._pairs(theta)
            ]
        return self._layers

    def _slope(self, logs: Tensor, weights: Tensor | None) -> Tensor:
        """A row for each class: the loss's derivative by the logarithms of a sample of it."""
        size, known, slope = self._slopes
        if logs.shape[-2] != size or weights is not known:
            size, classes = logs.shape[-2:]
            slope = torch.full((classes,), -1.0 / size)
            slope = torch.diag(slope if weights is None else slope * weights)
            self._slopes = (size, weights, slope)
        return slope

    def _pairs(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        models = flat.shape[:-1]
        views = [flat[..., e.start : e.stop].view(*models, *e.shape) for e in self._entries]
        return list(zip(views[::2], views[1::2], strict=True))
