"""The model that all train, at the server and at a site."""

from __future__ import annotations

from pgfed.config.tables import Experiment
from pgfed.federation.folders.folder import Agreement
from pgfed.model.networks import default_model, make_task
from pgfed.model.task import Task


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
