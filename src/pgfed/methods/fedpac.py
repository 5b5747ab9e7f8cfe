"""FedPAC: features of a class are drawn together over clients, heads are combined to fit.

Xu, Tong, Huang. Personalized federated learning with feature alignment and classifier
collaboration. ICLR 2023.

With the received base and head a client takes H_i[k] = pi_k mu_k (class shares and class means of
its features) and V_i, the variance of the mean of onehot(y) (x) z. It trains the head for an epoch
on the resting base, then the base under it, with lambda times the mean square of z - c_y beside the
loss: c_y the clients' common mean of the class, or its own where there is none. The server averages
the base, and combines heads for each client of the round: omega on the simplex minimises
sum_j omega_j^2 V_j + |H_i - sum_j omega_j H_j|^2.

Symbols: phi -> server["w"] (the body); c_k -> server["prototypes"], those there are ->
server["known"]; head_i -> server["heads"], rows in the order of server["ids"]; g_i -> state["own"];
H_i, V_i -> update["spread"], update["variance"]; class means after training ->
update["prototypes"]; lambda -> lam.

Class counts, means and second moments leave the client.

Differs from the released code in: one learning rate for head and base (there 0.1 and 0.01 or 0.02),
momentum as in [train] (there 0.5, decay 0.0005); features of the head's epoch are computed once, in
evaluation mode; omega is found by non-negative least squares (there by a solver that has to repair
a matrix which rounding left indefinite).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.errors import UserError
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm, FederationInfo, need_base
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.steps import NONE, Terms, head_then_base
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import EVALUATION_BATCH, Beside, Task

Floats = NDArray[np.float64]
LEAST = 1e-3  # of a head in a combination; below it counts as none


@dataclass(frozen=True, kw_only=True)
class FedPAC(Algorithm):
    name = "fedpac"
    leaves = {
        "w": "model",
        "head": "own",
        "spread": "prototypes",
        "variance": "scalar",
        "prototypes": "prototypes",
        "counts": "classes",
        "n": "count",
    }
    personal_from = "both"
    frames = False
    shared = "body"
    control = {"lam": 0.0, "combine": False}
    new_client_start = (
        "no global classifier: the common body, with the mean of all clients' classifiers, "
        "weighted by their training samples"
    )
    grid = {"lam": [0.1, 1.0, 10.0]}

    lam: Annotated[float, Ge(0), "lambda, pull of features towards their class's mean"] = 1.0
    head_epochs: Annotated[int, Ge(0), "epochs on the head before those on the base"] = 1
    combine: Annotated[bool, "heads are combined; false: each client goes on with its own"] = True

    def check_model(self, task: Task) -> None:
        need_base("fedpac", task)
        if not task.objective.classifies:
            raise UserError("methods: 'fedpac' needs classes, and the task has none")
        if not task.width:
            raise UserError("methods: 'fedpac' needs one vector of features before the head")

    def no_privacy(self) -> str | None:
        return (
            "class means, second moments and counts would be released in every round, K (z + 2) "
            "numbers in which small classes drown; fedrep does without them"
        )

    # -- the server --------------------------------------------------------------------------------

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        server = super().init_server(w0, federation)
        none = torch.empty(0, dtype=torch.int64, device=w0.device)
        return {**server, "ids": none, "heads": w0.new_empty(0, federation.layout.h)}

    def messages(self, server: State, cohort: Sequence[int], rng: ServerRng) -> dict[int, Message]:
        heads = dict(zip(server["ids"].tolist(), server["heads"], strict=True))
        common = {k: v for k, v in server.items() if k in ("w", "prototypes", "known")}
        return {i: {**common, **({"head": heads[i]} if i in heads else {})} for i in cohort}

    def aggregate(
        self, server: State, updates: Mapping[int, Update], mean: Mean, rng: ServerRng
    ) -> State:
        if not updates:
            return server
        ids, heads = mean.each(updates, "head")
        _, means = mean.each(updates, "prototypes")
        _, spread = mean.each(updates, "spread")
        _, counts = mean.each(updates, "counts")
        _, scatter = mean.each(updates, "variance")
        counts = counts.clamp(min=0)
        total = counts.sum(0)
        prototypes = (counts[..., None] * means).sum(0) / total.clamp(min=1)[:, None]
        combined = dict(zip(server["ids"].tolist(), server["heads"], strict=True))
        variance = scatter.clamp(min=0).double().cpu().numpy()
        flat = spread.flatten(1).double().cpu().numpy()
        for place, i in enumerate(ids):
            omega = combination(flat, variance, place) if self.combine else np.eye(len(ids))[place]
            combined[i] = torch.from_numpy(omega).to(heads) @ heads
        order = sorted(combined)
        return {
            **server,
            "w": mean(updates, "w", around=server["w"]),
            "ids": server["ids"].new_tensor(order),
            "heads": torch.stack([combined[i] for i in order]),
            "prototypes": prototypes,
            "known": (total > 0).float(),
        }

    # -- a client ----------------------------------------------------------------------------------

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        head = message.get("head", state["own"])
        start = task.layout.join(self.shared, message["w"], head)
        sums, counts, squares = class_sums(task, start, data)
        n = len(data)
        spread = sums / n
        variance = (squares / n - float(spread.square().sum())) / n
        terms = NONE
        if self.lam and "prototypes" in message:
            own = sums / counts.clamp(min=1)[:, None]
            known = message["known"][:, None] > 0
            anchors = torch.where(known, message["prototypes"], own.float())
            terms = Terms(beside=Beside(alignment(self.lam, anchors)))
        theta, kept = head_then_base(
            task, start, data, rng, self.train, state, head_epochs=self.head_epochs, terms=terms
        )
        body, trained = task.layout.split(self.shared, theta)
        after, _, _ = class_sums(task, theta, data)
        new = {"own": trained.clone(), **self.keep(**kept)}
        return new, {
            "w": body,
            "head": new["own"],
            "spread": spread.float(),
            "variance": variance,
            "prototypes": (after / counts.clamp(min=1)[:, None]).float(),
            "counts": counts.float(),
            "n": n,
        }


def class_sums(task: Task, theta: Tensor, data: Shard) -> tuple[Tensor, Tensor, float]:
    """(sum of the features of each class, samples of each, sum of all squares), in float64."""
    sums = torch.zeros(task.outputs, task.width, dtype=torch.float64, device=task.device)
    squares = 0.0
    for start in range(0, len(data), EVALUATION_BATCH):
        x, y = data.batch(slice(start, start + EVALUATION_BATCH))
        z = task.features(theta, x).double()
        sums.index_add_(0, y, z)
        squares += float(z.square().sum())
    return sums, data.class_counts(task.outputs).double(), squares


def alignment(lam: float, anchors: Tensor) -> Callable[..., Tensor]:
    """lambda times the mean square of z - c_y, of each sample."""

    def losses(z: Tensor, y: Tensor) -> Tensor:
        return lam * (z - anchors[y]).square().mean(1)

    return losses


def combination(spread: Floats, variance: Floats, place: int) -> Floats:
    """omega of the client at ``place``, over those who answered.

    The least |B omega|^2 on the simplex: non-negative least squares with one more equation, that
    omega sums to 1, gives a multiple of it (the same conditions of optimality).
    """
    own: Floats = np.eye(len(variance))[place]
    apart = (spread[place] - spread).T
    b = np.vstack([np.diag(np.sqrt(variance)), apart])
    size = float(np.linalg.norm(b, axis=0).max())
    if not size:  # all clients are alike, and nothing varies
        return own
    try:
        omega, _ = nnls(np.vstack([b / size, np.ones(len(own))]), [*np.zeros(len(b)), 1.0])
    except RuntimeError:
        return own
    if not omega.sum() > 0:
        return own
    omega = omega / omega.sum()
    omega[omega < LEAST] = 0.0
    found: Floats = omega / omega.sum()
    return found
