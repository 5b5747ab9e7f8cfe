"""FedJAX: its own FedAvg, on all cores through XLA's threads."""

from __future__ import annotations

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peer_rounds import work


def network(batch):
    pool = hk.MaxPool((1, 2, 2, 1), (1, 2, 2, 1), padding="VALID")
    layers = [
        *(hk.Conv2D(32, 5, padding="VALID"), jax.nn.relu, pool),
        *(hk.Conv2D(64, 5, padding="VALID"), jax.nn.relu, pool),
        *(hk.Flatten(), hk.Linear(512), jax.nn.relu, hk.Linear(10)),
    ]
    return hk.Sequential(layers)(batch["x"])


def main() -> None:
    data = []
    for i in range(work.CLIENTS):
        x, y = work.client(i)
        data.append(fedjax.ClientDataset({"x": np.moveaxis(x, 1, 3), "y": y}))
    model = hk.transform(lambda batch: network(batch))
    params = model.init(jax.random.PRNGKey(0), {"x": jnp.zeros((2, 32, 32, 3))})

    def loss(params, batch, rng):
        logs = jax.nn.log_softmax(model.apply(params, rng, batch))
        return -jnp.take_along_axis(logs, batch["y"][:, None], 1).mean()

    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(work.LR, work.MOMENTUM),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=work.BATCH, num_epochs=1, num_steps=None, drop_remainder=True
        ),
    )
    state, rng = algorithm.init(params), np.random.default_rng(0)
    while True:
        work.turn()
        drawn = rng.choice(work.CLIENTS, work.COHORT, replace=False)
        keys = jax.random.split(jax.random.PRNGKey(int(rng.integers(2**31))), work.COHORT)
        cohort = [(b"%d" % i, data[i], key) for i, key in zip(drawn, keys, strict=True)]
        state, _ = algorithm.apply(state, cohort)
        jax.block_until_ready(state.params)


if __name__ == "__main__":
    main()
