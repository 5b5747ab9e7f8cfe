"""The model that all train, and what a manifest says of it, at the server and at a site."""

from __future__ import annotations

import dataclasses
from typing import Any

from pgfed.config.experiment import Experiment
from pgfed.data.federation import Federation
from pgfed.federation.folders.folder import Agreement
from pgfed.methods.contract import Algorithm
from pgfed.model.networks import default_model, make_task
from pgfed.model.task import Task
from pgfed.results.models import FORMAT, normalisation


def model_name(agreement: Agreement, experiment: Experiment) -> str:
    return experiment.model.name or default_model(tuple(agreement.input_shape))


def make_model(agreement: Agreement, experiment: Experiment, seed: int) -> Task:
    return make_task(
        model_name(agreement, experiment),
        tuple(agreement.input_shape),
        len(agreement.classes),
        seed=seed,
        head=experiment.model.head,
    )


def manifest(
    experiment: Experiment,
    method: str,
    algorithm: Algorithm,
    task: Task,
    federation: Federation,
    *,
    round: int,
    seed: int,
    shared: dict[str, str] | None,
    clients: list[dict[str, Any]],
) -> dict[str, Any]:
    """As in a simulation; a client whose model is elsewhere has no file."""
    return {
        "format": FORMAT,
        "method": method,
        "hyperparameters": dataclasses.asdict(algorithm),
        "round": round,
        "seed": seed,
        "kept": "last",
        "model": experiment.model.name,
        "head": task.head_name,
        "input_shape": list(federation.input_shape),
        "classes": list(federation.class_names),
        "normalisation": normalisation(federation),
        "image_size": experiment.data.image_size,
        "data_fingerprint": federation.fingerprint if len(federation.y) else None,
        "global": shared,
        "clients": clients,
    }
