"""FedRoD: a generic model trained for balanced classes, plus each client's own linear head.

Chen, Chao. On bridging generic and personalized federated learning for image classification. ICLR
2022. The balanced soft-max is that of Ren et al., Balanced meta-softmax for long-tailed visual
recognition, NeurIPS 2020.

Per batch, with z = phi(x) and o = h(z): (phi, h) step on -log softmax(o + log pi_i)_y, and q_i on
-log softmax(o + q_i(z))_y, which does not reach (phi, h). Client i predicts with h + q_i, which is
one linear layer.

Symbols: the generic model theta = (phi, h) -> server["w"]; the personal head q_i -> state["q"]; the
momentum buffers of theta and q_i -> state["v"], state["v_q"]; pi_i, the shares of the classes in
the client's training data -> computed when needed.

Differs from the released code in: it has no momentum there (momentum_policy = "official"); pi_i
counts all training samples (there those of one pass without its incomplete batch, which can miss a
class). The hyper-network variant of the paper is left out, as there.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.errors import UserError
from pgfed.methods.contract import Algorithm, ClientInfo
from pgfed.methods.randomness import Rng
from pgfed.methods.steps import Descent, Step
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class FedRoD(Algorithm):
    name = "fedrod"
    leaves = {"w": "model", "n": "count"}
    personal_from = "both"
    frames = False
    official_momentum = False

    def check_model(self, task: Task) -> None:
        if not task.objective.classifies:
            raise UserError("methods: 'fedrod' balances classes, and the task has none")
        if not task.linear_head:
            raise UserError(
                f"methods: 'fedrod' adds two heads to one, so the model's head must be a single "
                f"nn.Linear that shares no weights; {task.head_name!r} is not"
            )

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"q": w0[client.federation.layout.head]}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        train = self.steps
        step = Step(task, message["w"], train, state)
        q = state["q"].clone()
        own = Descent(q, train, state, "v_q")
        # A class the client does not have: log 0, so that it leaves the soft-max.
        log_prior = (data.class_counts(task.outputs) / len(data)).log()
        for x, y in task.batches(data, train.batch_size, rng, epochs=train.epochs):
            own.begin()
            task.add_gradient_and_heads(
                step.theta, x, y, step.collect(), offset=log_prior, head=q, head_out=own.g
            )
            step.take()
            own.go()
        kept = self.keep(**step.kept, **own.kept)
        return {"q": q, **kept}, {"w": step.theta, "n": len(data)}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        body, head = task.layout.split("body", public["w"])
        return task.layout.join("body", body, head + state["q"])
