"""pfl-research: one process for each core (torchrun), FedAvg as it comes with the library."""

from __future__ import annotations

import os

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_default_framework_module
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from benchmarks.peer_rounds import work

torch.set_num_threads(1)


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = work.network()

    def loss(self, x, y, eval=False):
        return torch.nn.functional.cross_entropy(self.layers(x), y)

    def metrics(self, x, y):
        return {}


class Turns(TrainingProcessCallback):
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        if get_default_framework_module().distributed.global_rank == 0:
            work.turn()
        # Otherwise the others would begin the next round while another program has its turn.
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        return False, Metrics()


def main() -> None:
    data = [tuple(map(torch.from_numpy, work.client(i))) for i in range(work.CLIENTS)]
    sampler = get_user_sampler("random", list(range(work.CLIENTS)))
    users = FederatedDataset(lambda i: Dataset(data[i], user_id=i), sampler)
    workers = get_default_framework_module().distributed.world_size
    assert workers == int(os.environ["WORLD_SIZE"]), "each process would do all of the work"
    module = Network()
    model = PyTorchModel(
        module,
        lambda *words, **options: torch.optim.SGD(*words, momentum=work.MOMENTUM, **options),
        torch.optim.SGD(module.parameters(), lr=1.0),
    )
    params = NNAlgorithmParams(
        central_num_iterations=10**6,
        evaluation_frequency=10**6,
        train_cohort_size=work.COHORT,
        val_cohort_size=0,
    )
    train = NNTrainHyperParams(
        local_learning_rate=work.LR, local_num_epochs=1, local_batch_size=work.BATCH
    )
    np.random.seed(0)
    FederatedAveraging().run(
        params,
        SimulatedBackend(training_data=users, val_data=users),
        model,
        train,
        NNEvalHyperParams(local_batch_size=256),
        callbacks=[Turns()],
    )


if __name__ == "__main__":
    main()
