"""FedAvg-framed: FedAvg in each client's frame of class shares, blended with its own model.

The method we recommend where sites see the same classes in other shares; docs/beyond.md has what it
is worth, and where it stops paying. Training is FedAvg's on softmax(o(x) + log pi_i), pi_i the
shares of the classes at client i: the balanced soft-max (Ren et al., NeurIPS 2020) that FedRoD's
generic model is trained with (Chen, Chao, ICLR 2022), so that the common model is one for balanced
classes. The personal model is 0.7 times the newest common model in the client's frame plus 0.3
times the client's own last one (model interpolation: Deng et al., arXiv 2003.13461; Mansour et al.,
arXiv 2002.10619). It sends what FedAvg sends.

Symbols: theta -> server["w"], theta_i of the last participation -> state["w"], v_i -> state["v"],
log pi_i and the blend -> `personal`, which the engine and the client's view of the task see to:
without them this is FedAvg-local, its control. Where a task has no classes, or the model no
classifier that a frame could be folded into, the blend alone is left.

Differs from the released code in: there is none of this method. FedRoD's adds a personal head of
its own in place of the blend; its classes that a client does not have get no gradient at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.contract import Algorithm, ClientInfo
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import PersonalConfig
from pgfed.methods.steps import sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class FedAvgFramed(Algorithm):
    name = "fedavg-framed"
    leaves = {"w": "model", "n": "count"}
    personal_from = "own"
    covered = True
    control = {"personal": {"frame": "none", "blend": 1.0, "refresh": False}}
    control_twin = "fedavg-local"

    personal: PersonalConfig = field(
        default_factory=lambda: PersonalConfig(frame="training", blend=0.3)
    )

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"w": w0}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        w, kept = sgd(task, message["w"], data, rng, self.train, state)
        return {"w": w, **self.keep(**kept)}, {"w": w, "n": len(data)}

    def public(self, server: State) -> Message:
        return {}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        w: Tensor = state["w"]
        return w
