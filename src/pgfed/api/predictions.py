"""What a client's kept model gave for each of its test samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pgfed.errors import UserError
from pgfed.model.objectives import Objective
from pgfed.results.runs import Evidence


@dataclass(frozen=True)
class Predictions:
    """Test samples, in the order of the client's test data; as many rows as it has of them."""

    client: str
    outputs: list[str]  # the names of the classes, labels or values: the columns of ``predicted``
    target: NDArray[Any]  # what would have been right: a class's number, labels, or values
    predicted: NDArray[np.float64]  # samples x outputs: probabilities, or values
    outcome: NDArray[np.float32]  # of each sample: 1 is right and 0 is wrong; of values the error

    def __len__(self) -> int:
        return len(self.outcome)

    def __repr__(self) -> str:
        return f"<pgfed.Predictions of {self.client!r}: {len(self)} test samples>"

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per sample, as `pandas.DataFrame` takes them."""
        classes = self.target.ndim == 1 and self.target.dtype.kind == "i"
        rows = []
        for target, given, outcome in zip(self.target, self.predicted, self.outcome, strict=True):
            if classes:
                names = {"target": self.outputs[target], "predicted": self.outputs[given.argmax()]}
                values = {f"p:{name}": float(p) for name, p in self._named(given)}
            else:
                names = {f"target:{name}": float(y) for name, y in self._named(target.reshape(-1))}
                values = {name: float(value) for name, value in self._named(given)}
            rows.append({**names, **values, "outcome": float(outcome)})
        return rows

    def _named(self, values: NDArray[Any]) -> list[tuple[str, Any]]:
        # An objective of one's own may give more numbers than there are names.
        named = len(self.outputs) == len(values)
        names = self.outputs if named else [str(k) for k in range(len(values))]
        return list(zip(names, values, strict=True))


def predictions_of(
    evidence: Evidence | None, client: int, name: str, objective: Objective, outputs: list[str]
) -> Predictions:
    """One client's part of the evidence, in terms of the data."""
    if evidence is None or evidence.outputs is None or evidence.target is None:
        raise UserError(
            "predictions: this run kept none (masks are not kept, nor is what stays at real sites "
            "or was run by 0.1); Result.model gives the model, to make new ones"
        )
    mine = slice(int(evidence.offsets[client]), int(evidence.offsets[client + 1]))
    given = torch.tensor(evidence.outputs[mine], dtype=torch.float64)
    return Predictions(
        client=name,
        outputs=outputs,
        target=evidence.target[mine],
        predicted=objective.predictions(given).numpy(),
        outcome=evidence.outcome[mine],
    )
