"""Small data of every kind of task, in files, and an objective and a network of one's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pgfed.data.targets import Targets
from pgfed.model.objectives import Objective, Pairs

CLIENTS, SAMPLES, FEATURES = 4, 30, 6
KINDS = ("classes", "binary", "multilabel", "regression", "segmentation")
METRIC = {"classes": "accuracy", "binary": "AUC", "multilabel": "AUC", "regression": "R²"}
METRIC["segmentation"] = "Dice"


def arrays(kind: str, seed: int = 0) -> dict[str, NDArray[np.generic]]:
    """A world that is a little different at each client: x, y, client and split."""
    rng = np.random.default_rng(seed)
    n = CLIENTS * SAMPLES
    client = np.repeat(np.arange(CLIENTS), SAMPLES)
    split = (np.arange(n) % 3 == 2).astype(np.int64)
    if kind == "segmentation":
        x = rng.normal(size=(n, 1, 6, 6)) + 0.2 * client[:, None, None, None]
        y = (x[:, 0] > 0.3).astype(np.int64) + (x[:, 0] > 1.2)
        return {"x": x.astype(np.float32), "y": y, "client": client, "split": split}
    x = rng.normal(size=(n, FEATURES))
    slopes = rng.normal(size=(FEATURES, 3)) + 0.3 * rng.normal(size=(CLIENTS, FEATURES, 3))
    values = np.einsum("nf,nfk->nk", x, slopes[client]) + 0.1 * rng.normal(size=(n, 3))
    y = {
        "classes": lambda: values.argmax(1),
        # Half of each client's, so that all have both.
        "binary": lambda: np.where(values[:, 0] > _medians(values[:, 0]), "sick", "healthy"),
        "multilabel": lambda: (values > 0).astype(np.int64),
        "regression": lambda: 100 + 20 * values[:, 0],
    }[kind]()
    return {"x": x.astype(np.float32), "y": y, "client": client, "split": split}


def _medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.repeat(np.median(values.reshape(CLIENTS, SAMPLES), axis=1), SAMPLES)


def write(folder: Path, kind: str, text: str = "", **changed: NDArray[np.generic]) -> Path:
    """``data.npz`` and ``exp.toml`` of a short run; ``text`` is added to the experiment."""
    np.savez(folder / "data.npz", **{**arrays(kind), **changed})
    head = 'model = {name = "cli.task_worlds:pixels"}\n' if kind == "segmentation" else ""
    task = f'task = {{kind = "{kind}"}}'
    experiment = folder / "exp.toml"
    experiment.write_text(
        'format = 2\nname = "run"\nrounds = 3\nmethods = ["local", "fedavg", "pgfed"]\n'
        f"{head}"
        'data = {dataset = "npz:data.npz"}\n'
        "train = {epochs = 2, batch_size = 5, lr = 0.05}\n"
        f"{text or task}\n"
    )
    return experiment


def pixels(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A class for every pixel."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, outputs, 1)
    )


class Quantile(Objective):
    """Own: the upper quartile of a number, judged by its loss and by how often it is exceeded."""

    targets: Targets = "values"
    metric = "pinball"
    more_is_better = False
    bounds = (0.0, float("inf"))

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        gap = targets / 100 - outputs
        return torch.maximum(0.75 * gap, -0.25 * gap).mean(1)

    def scores(self, pairs: Pairs) -> dict[str, float | None]:
        outputs = torch.cat([o for o, _ in pairs])
        targets = torch.cat([y for _, y in pairs])
        return {
            "pinball": float(self.losses(outputs, targets).mean()),
            "above": float((targets / 100 > outputs).double().mean()),
        }
