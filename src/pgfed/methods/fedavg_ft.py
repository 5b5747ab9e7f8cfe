"""FedAvg-FT: FedAvg, but each client fine-tunes a copy of the model to be scored.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-efficient learning of deep networks
from decentralized data. AISTATS 2017.

The control that makes the comparison with FedAvg honest: one epoch on the client's own data is the
simplest personalization there is, and every other method should beat it.

Symbols: theta -> server["w"], the clients' momentum buffers v_i -> state["v"]. Fine-tuning starts
with a buffer of its own, and nothing of it is kept.

Differs from the released code in: the released code does not have this control.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.errors import need
from pgfed.methods.contract import Algorithm, Message, Rng, State, Update, sgd
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class FedAvgFT(Algorithm):
    name = "fedavg-ft"
    leaves = {"w": "model", "n": "count"}

    ft_epochs: int = 1  # epochs of fine-tuning
    ft_lr: float | None = None  # its learning rate; none: train.lr

    def __post_init__(self) -> None:
        need(self.ft_epochs >= 0, "method.fedavg-ft.ft_epochs", ">= 0", self.ft_epochs)
        if self.ft_lr is not None:
            need(self.ft_lr > 0, "method.fedavg-ft.ft_lr", "> 0", self.ft_lr)

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        w, v = sgd(task, message["w"], data, rng, self.train, velocity=state.get("v"))
        return self.keep(v=v), {"w": w, "n": len(data)}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        w, _ = sgd(
            task,
            public["w"],
            data,
            rng,
            self.train,
            epochs=self.ft_epochs,
            lr=self.ft_lr,
            purpose="evaluate",
        )
        return w
