"""What PGFed's server knows of the clients' risks: their first-order expansions.

Client j's risk near the model theta_j it reached is f_j(theta_j) + grad_j . (theta - theta_j), so
server["r"], r_j = f_j(theta_j) - grad_j . theta_j, and server["gradients"] tell all of it. Both
hold one row per client of server["ids"], the clients that answered in the last round.

With ``shared = "body"`` (personal heads) and the like, gradients, r_j and what is averaged are over
the shared part; the rest of a model stays with its client and enters the risks as it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods import alphas
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import ClientInfo, FederationInfo
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import TrainConfig
from pgfed.methods.steps import Terms, head_then_base, sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task

SHARED = (
    "what travels, is averaged and expanded: all | body | head | not-norm | a pattern of names | "
    "not: and a pattern"
)
SOLVER = "train all at once, or the head first and then the base under it, as FedRep does"
PLAIN = "the other risks enter by their gradients, as terms of a plain gradient step"
HEAD_EPOCHS = "epochs on the head, with solver = head-then-base"


class Family(Protocol):
    """The settings that PGFed and its relatives have in common."""

    @property
    def train(self) -> TrainConfig: ...
    @property
    def shared(self) -> str: ...
    @property
    def solver(self) -> str: ...
    @property
    def head_epochs(self) -> int: ...
    @property
    def full_grad(self) -> bool: ...
    def keep(self, **buffers: Tensor) -> State: ...


# -- at the server ---------------------------------------------------------------------------------


def unknown(w0: Tensor, federation: FederationInfo, shared: str) -> State:
    """The server's state before anybody has answered."""
    w, own = federation.layout.split(shared, w0)
    return {
        "w": w,
        **({"own": own} if len(own) else {}),
        "ids": torch.empty(0, dtype=torch.int64),
        "gradients": torch.empty(0, federation.layout.stepped(shared).size),
        "r": torch.empty(0),
        **alphas.empty(federation.clients, federation.cohort),
    }


def auxiliary(server: State, cohort: Sequence[int], mu: float) -> Tensor:
    """mu * sum_j alpha_ij grad_j for every client i of the cohort, as one matrix product."""
    alpha = alphas.matrix(server, cohort, server["ids"])
    return alpha.matmul(server["gradients"]).mul_(mu)


def collect(server: State, updates: Mapping[int, Update], mean: Mean) -> State:
    """The server's state after a round: the mean model, the risks, and the rows of A."""
    if not updates:  # the next round runs as the first
        return {**server, **{key: server[key][:0] for key in ("ids", "gradients", "r")}}
    ids, gradients = mean.each(updates, "gradient")
    _, r = mean.each(updates, "r")
    return {
        **server,
        **alphas.with_rows(server, server["ids"], {i: u["alpha"] for i, u in updates.items()}),
        "w": mean(updates, "w", around=server["w"]),
        "ids": server["ids"].new_tensor(ids),
        "gradients": gradients,
        "r": r.to(gradients.device),
    }


# -- at a client -----------------------------------------------------------------------------------


def untrained(w0: Tensor, client: ClientInfo) -> State:
    """A client's state before it has taken part."""
    return {"w": w0, **alphas.empty_row(client.federation.cohort)}


def met(state: State, message: Message) -> tuple[Tensor, Tensor]:
    """Whose risks the message tells of, and the client's alphas for them, as a new tensor."""
    ids = message.get("ids", state["alpha_ids"][:0])
    return ids, alphas.row(state, ids)


def local_round(
    method: Family,
    task: Task,
    state: State,
    message: Message,
    data: Shard,
    rng: Rng,
    *,
    aux: Tensor | None,
    ids: Tensor,
    alpha: Tensor,
    descend_alpha: Callable[[Tensor], None],
    alpha_last: bool = False,
) -> tuple[State, Update]:
    """Train with the auxiliary gradient, and tell of the own risk at the model that was reached.

    ``descend_alpha(theta)`` steps ``alpha`` in place before each step of theta (``alpha_last``:
    after it). What is not shared goes on from the client's own last model.
    """
    layout, shared = task.layout, method.shared
    _, own = layout.split(shared, state["w"])
    start = layout.join(shared, message["w"], own)
    terms = Terms(
        constant=None if aux is None else layout.spread(shared, aux),
        before=None if alpha_last else descend_alpha,
        after=descend_alpha if alpha_last else None,
    )
    if method.solver == "sgd":
        theta, kept = sgd(task, start, data, rng, method.train, state, terms=terms)
    else:
        theta, kept = head_then_base(
            task,
            start,
            data,
            rng,
            method.train,
            state,
            terms=terms,
            head_epochs=method.head_epochs,
        )
    size, full = method.train.batch_size, method.full_grad
    risk, gradient = task.mean_gradient(theta, data, rng, size, full=full)
    part = layout.stepped(shared)
    gradient = part.take(gradient)
    new = {"w": theta, **alphas.with_row(state, ids, alpha), **method.keep(**kept)}
    return new, {
        "w": layout.shared(shared).take(theta),
        "gradient": gradient,
        "r": risk - float(gradient @ part.take(theta[: task.d])),
        "alpha": alpha,
        "n": len(data),
    }


def own_part(shared: str, state: State, client: ClientInfo) -> Update:
    """What a client gives for the global model where not all is shared."""
    _, own = client.federation.layout.split(shared, state["w"])
    return {"own": own.clone(), "n": client.n}
