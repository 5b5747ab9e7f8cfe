"""PGFed and PGFedMo by hand: Algorithm 1 of the paper, from top to bottom, on plain torch.

    python examples/pgfed_by_hand.py

Luo, Mendieta, Chen, Wu. PGFed: Personalize Each Client's Global Objective for Federated Learning.
ICCV 2023.

N clients want one model theta_i each. Client i would like to minimise its own risk and a personal
mixture of everybody's,

    F_i(theta_i, alpha_i) = f_i(theta_i) + mu * sum_j alpha_ij f_j(theta_i),

but f_j lives on client j's data. So f_j is replaced by its tangent at theta_j, the model that
client j had at the end of the last round:

    f_j(theta_i)  ~  f_j(theta_j) + grad_j . (theta_i - theta_j)  =  r_j + grad_j . theta_i

with grad_j = the gradient of f_j at theta_j, and r_j = f_j(theta_j) - grad_j . theta_j. One vector
and one number per client: that is all the others need to know. The two gradients of F_i become

    for theta_i:   own gradient + g~_i         with g~_i = mu * sum_j alpha_ij grad_j
    for alpha_ij:  mu * r_j + gbar . theta_i   with gbar = mu * (mean of the grad_j)

(exact would be mu * grad_j . theta_i; the mean saves sending every grad_j to everybody). PGFedMo
mixes g~_i with the one of the client's previous participation: beta is the share of the old one.

Two details follow the authors' released code and not the printed algorithm: within a step alpha
moves before theta, and alpha is kept >= 0. Momentum is 0.9, and a client keeps its buffer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Settings:
    M: int  # clients per round; every alpha starts at 1/M
    mu: float = 0.1  # weight of the others' risks
    eta_1: float = 0.01  # step of theta
    eta_2: float = 0.01  # step of alpha
    beta: float = 0.0  # > 0: PGFedMo
    epochs: int = 5
    batch_size: int = 10


@dataclass
class Client:
    """What lives at one site. Its data never leave it."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    model: nn.Module  # theta_i
    optimizer: torch.optim.Optimizer | None = None  # with this client's momentum
    alpha: dict[int, float] = field(default_factory=dict)  # row i of A; not there: still 1/M
    g_tilde: Tensor | None = None  # of the previous participation, for PGFedMo

    def accuracy(self) -> float:
        with torch.no_grad():
            return float((self.model(self.x_test).argmax(1) == self.y_test).float().mean())


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """A whole model, or its gradient, as one vector."""
    return torch.cat([t.detach().flatten() for t in tensors])


def pieces(model: nn.Module, vector: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Each parameter of the model with its part of a flat vector."""
    parts = vector.split([p.numel() for p in model.parameters()])
    for p, part in zip(model.parameters(), parts, strict=True):
        yield p, part.view_as(p)


class Received(NamedTuple):
    """What a client is sent besides theta_glob, from the second round on."""

    g_tilde: Tensor
    g_bar: Tensor
    g1: dict[int, float]  # mu * r_j of each client j of the last round


Order = Callable[[int, int, str, int], Tensor]  # (client, round, purpose, epoch) -> permutation


def client_update(
    client: Client,
    theta: Tensor,
    received: Received | None,
    i: int,
    t: int,
    order: Order,
    s: Settings,
) -> tuple[Tensor, float, Tensor]:
    """ClientUpdate of Algorithm 1: returns theta_i, r_i and grad_i; alpha_i is in the client."""
    model, alpha = client.model, client.alpha
    if client.optimizer is None:
        client.optimizer = torch.optim.SGD(model.parameters(), lr=s.eta_1, momentum=0.9)
    for p, part in pieces(model, theta):
        p.data.copy_(part)
    if received:
        g_tilde, g_bar, g1 = received
        if client.g_tilde is not None:  # PGFedMo; beta = 0 leaves the new one as it is
            g_tilde = (1 - s.beta) * g_tilde + s.beta * client.g_tilde
        client.g_tilde = g_tilde

    size = min(s.batch_size, len(client.y))
    used = len(client.y) // size * size  # the last incomplete batch is dropped
    for epoch in range(s.epochs):
        for batch in order(i, t, "train", epoch)[:used].split(size):
            model.zero_grad()
            F.cross_entropy(model(client.x[batch]), client.y[batch]).backward()
            if received:
                for p, part in pieces(model, g_tilde):
                    p.grad.add_(part)
                g2 = float(g_bar @ flat(model.parameters()))
                for j in g1:
                    alpha[j] = max(0.0, alpha.get(j, 1 / s.M) - s.eta_2 * (g1[j] + g2))
            client.optimizer.step()

    # For the next round's clients: the tangent of f_i at the point where theta_i has arrived.
    sample = order(i, t, "gradient", 0)[:used]
    model.zero_grad()
    risk = F.cross_entropy(model(client.x[sample]), client.y[sample])
    risk.backward()
    theta, grad = flat(model.parameters()), flat(p.grad for p in model.parameters())
    return theta, risk.item() - float(grad @ theta), grad


def pgfed(
    clients: list[Client], theta: Tensor, cohorts: list[list[int]], order: Order, s: Settings
) -> Iterator[Tensor]:
    """ServerExecute of Algorithm 1: yields theta_glob after each round; clients hold theta_i.

    With mu = 0 the other risks vanish, and what is left is FedAvg whose clients are scored with
    the model they trained last: the control that shows what the explicit objective contributes.
    """
    grad: dict[int, Tensor] = {}  # grad_j of the clients of the last round
    r: dict[int, float] = {}  # their r_j
    for t, cohort in enumerate(cohorts, start=1):
        replies = {}
        for i in cohort:  # in a real federation: in parallel
            received = None
            if grad:
                row = clients[i].alpha  # the server has a copy of it, A[i]
                g_tilde = sum(s.mu * row.get(j, 1 / s.M) * grad[j] for j in grad)
                g_bar = s.mu * sum(grad.values()) / len(grad)
                received = Received(g_tilde, g_bar, {j: s.mu * r[j] for j in r})
            replies[i] = client_update(clients[i], theta, received, i, t, order, s)
        n = sum(len(clients[i].y) for i in cohort)
        theta = sum(len(clients[i].y) / n * replies[i][0] for i in cohort)
        r = {i: replies[i][1] for i in cohort}
        grad = {i: replies[i][2] for i in cohort}
        yield theta


def digits(clients: int, model: nn.Module) -> list[Client]:
    """scikit-learn's digits; each class is dealt to the clients in Dirichlet(0.5) shares."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(1)
    parts: list[list[int]] = [[] for _ in range(clients)]
    for label in range(10):
        members = rng.permutation(np.flatnonzero(labels == label))
        cuts = (np.cumsum(rng.dirichlet(np.full(clients, 0.5)))[:-1] * len(members)).astype(int)
        for part, piece in zip(parts, np.split(members, cuts), strict=True):
            part.extend(piece)
    out = []
    for part in parts:
        mine = rng.permutation(part)
        x, y = torch.tensor(images[mine] / 8 - 1, dtype=torch.float32), torch.tensor(labels[mine])
        half = len(y) // 2
        out.append(Client(x[:half], y[:half], x[half:], y[half:], copy.deepcopy(model)))
    return out


def main(rounds: int = 20) -> None:
    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    N, M = 20, 5
    draw = np.random.default_rng(0)
    cohorts = [sorted(draw.choice(N, M, replace=False).tolist()) for _ in range(rounds)]
    n = [len(client.y) for client in digits(N, start)]

    def order(i: int, t: int, purpose: str, epoch: int) -> Tensor:
        # Keyed, not streamed: every method trains on the same batches.
        key = (i, t, epoch, int(purpose == "gradient"))
        return torch.from_numpy(np.random.default_rng(key).permutation(n[i]))

    # Little local training (2 epochs): with more of it the margin over the control shrinks.
    methods = {"FedAvg, trained locally": (0.0, 0.0), "PGFed": (0.5, 0.0), "PGFedMo": (0.5, 0.5)}
    curves = []
    for mu, beta in methods.values():
        clients = digits(N, start)
        run = pgfed(
            clients, flat(start.parameters()), cohorts, order, Settings(M, mu, beta=beta, epochs=2)
        )
        curves.append([100 * np.mean([client.accuracy() for client in clients]) for _ in run])

    print(f"{N} clients, {M} per round: mean accuracy (%) of the clients' models, each on the")
    print("client's own test data\n\nround" + "".join(f"{name:>25}" for name in methods))
    for t, row in enumerate(zip(*curves, strict=True), start=1):
        print(f"{t:5d}" + "".join(f"{value:25.1f}" for value in row))


if __name__ == "__main__":
    torch.set_num_threads(1)  # for a model this small, more only stand in each other's way
    main()
