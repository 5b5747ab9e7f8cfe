"""The yardstick: federated learning as one would write it on a free afternoon.

An nn.Module, a DataLoader, torch.optim.SGD and deepcopy, on all of the machine's cores through
torch's own threads; every client is scored in every round. FedAvg, and PGFed as in the paper's
Algorithm 1. What costs nothing to do well is done well: pixels are made floats once, scoring takes
large batches, the alphas of a client are one vector.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pgfed.data.federation import Federation, Shard
from pgfed.methods.randomness import draw_cohort

SCORING_BATCH = 256
LR, MOMENTUM, MU, ALPHA_LR = 0.001, 0.9, 0.1, 0.01


def textbook_cnn(classes: int = 10) -> nn.Module:
    """The paper's network for 3x32x32 as its released code has it: ReLU, then pooling."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(inplace=True), nn.Linear(512, classes)),
    )


class PlainLoop:
    """Rounds of FedAvg, or of PGFed, with ``cohort`` clients each."""

    def __init__(
        self,
        federation: Federation,
        batch_size: int,
        epochs: int,
        cohort: int,
        *,
        pgfed: bool = False,
        network: Callable[[], nn.Module] = textbook_cnn,
    ) -> None:
        n = len(federation)
        self.clients, self.cohort = n, cohort
        self.batch_size, self.epochs, self.pgfed = batch_size, epochs, pgfed
        self.train = [_dataset(federation.train(i)) for i in range(n)]
        self.test = [_dataset(federation.test(i)) for i in range(n)]
        self.model = network()
        self.personal = [self.model] * n
        self.alpha = torch.full((n, n), 1 / cohort)
        self.known: list[int] = []  # whose gradients and risks came in the last round
        self.gradients: list[list[Tensor]] = []
        self.risks = torch.empty(0)
        self.rounds = 0

    def turn(self) -> float:
        """Seconds of client training per image, of one more round; scoring apart."""
        self.rounds += 1
        cohort = draw_cohort(0, self.rounds, self.clients, self.cohort)
        training, images = self._train_cohort(cohort)
        return training / images

    def round(self, cohort: list[int]) -> float:
        """Seconds of one whole round."""
        began = time.perf_counter()
        self._train_cohort(cohort)
        for i, data in enumerate(self.test):
            self._score(self.personal[i] if self.pgfed else self.model, data)
        return time.perf_counter() - began

    def _train_cohort(self, cohort: list[int]) -> tuple[float, int]:
        models, gradients, risks = [], [], []
        training, images = 0.0, 0
        for i in cohort:
            started = time.perf_counter()
            model = copy.deepcopy(self.model)
            images += self._train(i, model)
            if self.pgfed:
                gradient, risk = self._gradient(i, model)
                gradients.append(gradient)
                risks.append(risk)
            training += time.perf_counter() - started
            models.append(model)
            self.personal[i] = model
        if self.pgfed:
            self.known, self.gradients, self.risks = cohort, gradients, torch.stack(risks)
        sizes = [len(self.train[i]) for i in cohort]
        states = [model.state_dict() for model in models]
        self.model.load_state_dict(
            {
                name: sum(n / sum(sizes) * s[name] for n, s in zip(sizes, states, strict=True))
                for name in states[0]
            }
        )
        return training, images

    def _loader(self, i: int) -> DataLoader[tuple[Tensor, ...]]:
        size = min(self.batch_size, len(self.train[i]))
        return DataLoader(self.train[i], batch_size=size, shuffle=True, drop_last=True)

    def _train(self, i: int, model: nn.Module) -> int:
        """Train the model in place; the number of images it was stepped over."""
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
        tensors = range(len(list(model.parameters()))) if self.known else ()
        alpha = self.alpha[i, self.known]
        weighed = list(zip(alpha, self.gradients, strict=True))
        aux = [MU * sum(a * g[k] for a, g in weighed) for k in tensors]
        mean = [MU / len(self.known) * sum(g[k] for g in self.gradients) for k in tensors]
        loader = self._loader(i)
        images = 0
        for _ in range(self.epochs):
            for x, y in loader:
                images += len(y)
                optimizer.zero_grad()
                torch.autograd.backward(F.cross_entropy(model(x), y))
                if self.known:
                    with torch.no_grad():
                        inner = torch.zeros(())
                        for p, a, m in zip(model.parameters(), aux, mean, strict=True):
                            assert p.grad is not None, "after backward"
                            p.grad.add_(a)
                            inner += (m * p).sum()
                        alpha = (alpha - ALPHA_LR * (MU * self.risks + inner)).clamp(min=0)
                optimizer.step()
        self.alpha[i, self.known] = alpha
        return images

    def _gradient(self, i: int, model: nn.Module) -> tuple[list[Tensor], Tensor]:
        """One more epoch at the new model, batch by batch as Algorithm 1 has it."""
        loader = self._loader(i)
        model.zero_grad()
        risk = torch.zeros(())
        for x, y in loader:
            loss = F.cross_entropy(model(x), y) / len(loader)
            torch.autograd.backward(loss)
            risk += loss.detach()
        gradient = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        with torch.no_grad():
            inner = sum((g * p).sum() for g, p in zip(gradient, model.parameters(), strict=True))
        return gradient, risk - inner

    @torch.no_grad()
    def _score(self, model: nn.Module, data: TensorDataset) -> float:
        model.eval()
        correct = 0
        for x, y in DataLoader(data, batch_size=SCORING_BATCH):
            correct += int((model(x).argmax(1) == y).sum())
        model.train()
        return correct / len(data)


def _dataset(shard: Shard) -> TensorDataset:
    x, y = shard.batch(slice(0, len(shard)))
    return TensorDataset(x.contiguous(), y)
