"""`pgfed.run` for tests that set many keys: each by its last name, whatever its table."""

from __future__ import annotations

from typing import Any

import pgfed
from pgfed.api import Result
from pgfed.config.schema import dotted
from pgfed.config.tables import Experiment

# Names that several tables have, or that are a table's own.
TABLES = {
    "models": "output",
    "kind": "task",
    **dict.fromkeys(("lr", "optimizer", "clip"), "train"),
    "name": "",
    "data_seed": "data",
    **dict.fromkeys(("attack", "attack_share", "attack_strength"), "attack"),
}
LEAVES = {
    "attack": "kind",
    "attack_share": "share",
    "attack_strength": "strength",
    "data_seed": "seed",
}
WHOLE = {"model", "method", "datasets", "target", "out", "data_root", "progress", "callbacks"}


def run(data: Any = None, **options: Any) -> Result:
    """Run with ``lr=0.1, clients=4, backend="serial"`` instead of three dictionaries."""
    given: dict[str, Any] = {}
    for name, value in options.items():
        table = "" if name in WHOLE else _table(name)
        leaf = LEAVES.get(name, name)
        (given.setdefault(table, {}) if table else given)[leaf] = value
    about = given.pop("data", {})
    if about and data is not None:
        about["dataset"] = data
    return pgfed.run(about or data, **given)


def _table(name: str) -> str:
    if name in TABLES:
        return TABLES[name]
    (key,) = (key for key in dotted(Experiment) if key.rpartition(".")[2] == name)
    return key.rpartition(".")[0]
