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

from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Ge, Gt
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.contract import Algorithm
from pgfed.methods.randomness import Rng
from pgfed.methods.steps import sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class FedAvgFT(Algorithm):
    name = "fedavg-ft"
    leaves = {"w": "model", "n": "count"}

    ft_epochs: Annotated[int, Ge(0), "epochs of fine-tuning"] = 1
    ft_lr: Annotated[Annotated[float, Gt(0)] | None, "its learning rate; none: train.lr"] = None

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        w, kept = sgd(task, message["w"], data, rng, self.train, state)
        return self.keep(**kept), {"w": w, "n": len(data)}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        lr = self.train.lr if self.ft_lr is None else self.ft_lr
        train = replace(self.train, epochs=self.ft_epochs, lr=lr)
        w, _ = sgd(task, public["w"], data, rng, train, purpose="evaluate")
        return w
