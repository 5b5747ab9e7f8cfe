"""The gradient of a chain of linear layers, written out: for small models a step costs what
autograd costs, not its arithmetic.

The same kernels in the same order as autograd's, so the same bits (`tests/model/test_explicit.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pgfed.model.flat import Entry, Stepped


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
    """Its entries are (weight, bias) of each layer, the last of which is the head."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._theta = self._out = torch.empty(0)
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._gradients: list[tuple[Tensor, Tensor]] = []
        self._targets = (0, torch.empty(0))  # by size of the batch

    @torch.inference_mode()
    def add_gradient(
        self, theta: Tensor, x: Tensor, y: Tensor, out: Tensor, part: Stepped
    ) -> Tensor:
        """Add the gradient of the batch's mean cross-entropy to ``out``; return the loss."""
        if theta is not self._theta:
            self._theta, self._layers = theta, self._pairs(theta)
        if out is not self._out:
            self._out, self._gradients = out, self._pairs(out)
        inputs = [x.flatten(1)]
        for weight, bias in self._layers[:-1]:
            inputs.append(torch.addmm(bias, inputs[-1], weight.t()).relu_())
        weight, bias = self._layers[-1]
        logs = F.log_softmax(torch.addmm(bias, inputs[-1], weight.t()), 1)
        if len(y) != self._targets[0]:
            self._targets = (len(y), torch.diag(torch.full((logs.shape[1],), -1.0 / len(y))))
        g = self._targets[1].index_select(0, y)  # the derivative by the logarithms
        g = torch._log_softmax_backward_data(g, logs, 1, logs.dtype)
        last = len(self._layers) - 1
        for i in range(last, -1, -1):
            if part == "all" or (part == "head") == (i == last):
                to_weight, to_bias = self._gradients[i]
                to_weight.add_(g.t().mm(inputs[i]))
                to_bias.add_(g.sum(0))
            if i == 0 or part == "head":
                break
            g = torch.ops.aten.threshold_backward(g.mm(self._layers[i][0]), inputs[i], 0)
        return F.nll_loss(logs, y)

    def _pairs(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        views = [e.view(flat) for e in self._entries]
        return list(zip(views[::2], views[1::2], strict=True))
