"""The paper's numbers, beside a run where the setting is the paper's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from pgfed.methods.registry import NAMES
from pgfed.results.comparison import Group, Method

# our name -> the paper's
METHODS = {
    "local": "Local",
    "fedavg": "FedAvg",
    "feddyn": "FedDyn",
    "pfedme": "pFedMe",
    "fedfomo": "FedFomo",
    "apfl": "APFL",
    "fedrep": "FedRep",
    "lg-fedavg": "LG-FedAvg",
    "fedper": "FedPer",
    "per-fedavg": "Per-FedAvg",
    "fedrod": "FedRoD",
    "fedbabu": "FedBABU",
    "pgfed": "PGFed",
    "pgfed-mo": "PGFedMo",
    "pgfed-ce": "PGFed-CE",
}
DATASETS = {
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "organamnist": "OrganAMNIST",
    "office-home": "Office-Home",
}
ACCURACY_TABLES = ("main_results", "organamnist", "officehome")


def printed_name(name: str, label: str) -> str:
    """A method as papers write it: the paper's own spelling, otherwise its class's name.

    ``label`` may say more than the name, which is kept.
    """
    known = METHODS.get(name) or (NAMES[name].home.partition(":")[2] if name in NAMES else name)
    return known + label.removeprefix(name)


@cache
def tables() -> dict[str, Any]:
    """Everything the paper prints, as data; accuracies in percent."""
    text = files(__package__).joinpath("paper_tables.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def accuracy(group: Group, method: Method) -> dict[str, Any] | None:
    """Best round on test data, mean and std over three seeds."""
    for table in ACCURACY_TABLES:
        for row in _rows(group, method, table):
            if row.get("domain", "Mean") == "Mean":
                return row
    # PGFed-CE is in the table of speeds only.
    for row in _rows(group, method, "local_computation_speed"):
        return {"mean": row["accuracy_mean"], "std": row["accuracy_std"]}
    return None


def domain_accuracy(group: Group, method: Method, domain: str) -> dict[str, Any] | None:
    """The same for one domain of Office-Home."""
    plain = domain.casefold().replace(" ", "").replace("_", "")
    for row in _rows(group, method, "officehome"):
        if row["domain"].casefold().replace(" ", "") == plain:
            return row
    return None


def gain(group: Group, method: Method) -> dict[str, Any] | None:
    """Individual gain over Local: mean and std over the clients."""
    return next(_rows(group, method, "individual_gain_over_local"), None)


def rounds_to_70(group: Group, method: Method) -> int | None:
    row = next(_rows(group, method, "rounds_to_70"), None)
    return None if row is None else int(row["rounds"])


def bytes_ratio(method: Method) -> float | None:
    """Bytes relative to FedAvg's; it does not depend on the data."""
    ratios = tables()["communication_cost_relative_to_FedAvg"]
    found = ratios.get(METHODS.get(method.name, ""))
    return None if found is None else float(found["ratio"])


def new_clients(group: Group, name: str) -> float | None:
    """Best mean accuracy of the 20 new clients while they fine-tune, as a fraction."""
    data = _dataset(group)
    value = tables()["new_clients"].get(data, {}).get(METHODS.get(name, ""))
    return None if value is None else value / 100


def explicit(group: Group) -> dict[str, Any] | None:
    """Mean gain of explicit and implicit steps from a FedAvg model."""
    row: dict[str, Any] = tables()["explicit_vs_implicit"]
    same = (_dataset(group), len(group.clients)) == (row["dataset"], row["clients"])
    return row if same else None


def _dataset(group: Group) -> str:
    return DATASETS.get(group.folders[0].experiment.data.dataset, "")


def _rows(group: Group, method: Method, table: str) -> Iterator[dict[str, Any]]:
    data, clients, name = _dataset(group), len(group.clients), METHODS.get(method.name)
    for row in tables()[table]:
        if (row["method"], row["dataset"], row["clients"]) == (name, data, clients):
            yield row


def differences(group: Group, method: Method) -> list[str]:
    """In what the run's setting is not the paper's; batch size always, as the paper has none."""
    paper, own = tables()["setup"], method.settings
    data = group.folders[0].experiment.data
    partition = "domain" if _dataset(group) == "Office-Home" else "dirichlet"
    row = accuracy(group, method) or {}
    expected = {
        "rounds": (own["rounds"], paper["rounds"]),
        "seeds": (len(method.runs), paper["seeds"]),
        "cohort": (own["cohort"], row.get("sample_rate", paper["client_sample_rate"])),
        "local epochs": (own["epochs"], paper["local_epochs"]),
        "momentum": (own["momentum"], paper["sgd_momentum"]),
        "partition": (data.partition, partition),
        "Dirichlet alpha": (data.alpha, row.get("dirichlet", paper["dirichlet_alpha"])),
    }
    told = [f"{key} {ours} (paper {its})" for key, (ours, its) in expected.items() if ours != its]
    grid = tables()["hyperparameter_grids"]["learning_rate"]
    if own["lr"] not in grid:
        told.append(f"learning rate {own['lr']} (not on the paper's grid)")
    return [*told, f"batch size {own['batch_size']} (the paper does not say)"]
