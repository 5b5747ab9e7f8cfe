"""The yardstick: federated learning as one would write it on a free afternoon.

An nn.Module, a DataLoader, torch.optim.SGD and deepcopy; all of the machine's threads; every client
is scored in every round. FedAvg, and PGFed as in the paper's Algorithm 1.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pgfed.data.federation import Federation, Shard
from pgfed.models import CNN


def _dataset(shard: Shard) -> TensorDataset:
    x, y = shard.batch(slice(0, len(shard)))
    return TensorDataset(x.contiguous(), y)


@dataclass
class PlainLoop:
    """Rounds of FedAvg, or of PGFed with ``mu``, over the given clients."""

    federation: Federation
    batch_size: int
    epochs: int
    lr: float = 0.005
    mu: float | None = None

    def __post_init__(self) -> None:
        n = range(len(self.federation))
        self.train = [_dataset(self.federation.train(i)) for i in n]
        self.test = [_dataset(self.federation.test(i)) for i in n]
        self.model: nn.Module = CNN(self.federation.input_shape, len(self.federation.class_names))
        self.personal = [copy.deepcopy(self.model) for _ in n]
        self.gradients: dict[int, list[Tensor]] = {}
        self.risks: dict[int, Tensor] = {}
        self.alpha = torch.full((len(self.federation),) * 2, 0.1)

    def round(self, cohort: list[int]) -> tuple[float, float]:
        """(seconds of client training, seconds of the whole round)."""
        began = time.perf_counter()
        models, gradients, risks = [], {}, {}
        training = 0.0
        for i in cohort:
            started = time.perf_counter()
            model = copy.deepcopy(self.model)
            self._train(i, model)
            if self.mu is not None:
                gradients[i], risks[i] = self._gradient(i, model)
            training += time.perf_counter() - started
            models.append(model)
            self.personal[i] = model
        self.gradients, self.risks = gradients, risks
        sizes = [len(self.train[i]) for i in cohort]
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                mean = sum(
                    n / sum(sizes) * dict(m.named_parameters())[name]
                    for n, m in zip(sizes, models, strict=True)
                )
                parameter.copy_(mean)
        for i, data in enumerate(self.test):
            self._score(self.model if self.mu is None else self.personal[i], data)
        return training, time.perf_counter() - began

    def _train(self, i: int, model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=self.lr, momentum=0.9)
        known = list(self.gradients)
        aux = mean = None
        if known and self.mu is not None:
            aux = [
                self.mu * sum(self.alpha[i, j] * self.gradients[j][k] for j in known)
                for k in range(len(self.gradients[known[0]]))
            ]
            mean = [
                self.mu / len(known) * sum(self.gradients[j][k] for j in known)
                for k in range(len(aux))
            ]
        size = min(self.batch_size, len(self.train[i]))
        loader = DataLoader(self.train[i], batch_size=size, shuffle=True, drop_last=True)
        for _ in range(self.epochs):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                if aux is not None and mean is not None and self.mu is not None:
                    with torch.no_grad():
                        inner = torch.zeros(())
                        for p, g, m in zip(model.parameters(), aux, mean, strict=True):
                            p.grad.add_(g)
                            inner += (m * p).sum()
                        for j in known:
                            step = 0.01 * (self.mu * self.risks[j] + inner)
                            self.alpha[i, j] = max(self.alpha[i, j] - step, torch.zeros(()))
                optimizer.step()

    def _gradient(self, i: int, model: nn.Module) -> tuple[list[Tensor], Tensor]:
        size = min(self.batch_size, len(self.train[i]))
        loader = DataLoader(self.train[i], batch_size=size, shuffle=True, drop_last=True)
        model.zero_grad()
        risk = torch.zeros(())
        for x, y in loader:
            loss = F.cross_entropy(model(x), y) / len(loader)
            loss.backward()
            risk += loss.detach()
        gradient = [p.grad.clone() for p in model.parameters()]
        with torch.no_grad():
            inner = sum((g * p).sum() for g, p in zip(gradient, model.parameters(), strict=True))
        return gradient, risk - inner

    @torch.no_grad()
    def _score(self, model: nn.Module, data: TensorDataset) -> None:
        model.eval()
        for x, y in DataLoader(data, batch_size=self.batch_size):
            (model(x).argmax(1) == y).sum().item()
        model.train()
