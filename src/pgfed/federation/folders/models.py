"""The model that all train, at the server and at a site."""

from __future__ import annotations

from pgfed.config.tables import Experiment
from pgfed.data.federation import Federation
from pgfed.engine.client import ClientSide
from pgfed.engine.exchange.compression import make_compression
from pgfed.engine.objective import make_objective
from pgfed.errors import UserError
from pgfed.federation.folders.folder import Agreement
from pgfed.methods.contract import Algorithm, FederationInfo
from pgfed.model.networks import Factory, default_model, factory, make_task
from pgfed.model.objectives import Objective
from pgfed.model.task import Task


def model_of(agreement: Agreement, experiment: Experiment) -> Factory:
    name = experiment.model.name or default_model(agreement.without_data())
    return factory(name, experiment.model.options)


def make_model(
    agreement: Agreement, experiment: Experiment, seed: int, federation: Federation
) -> Task:
    """Tried on the site's own samples; at the server, which has none, on zeros."""
    return make_task(
        model_of(agreement, experiment),
        tuple(agreement.input_shape),
        len(agreement.classes),
        seed=seed,
        example=federation.example(),
        head=experiment.model.head,
        objective=objective_of(agreement, experiment),
    )


def make_side(
    agreement: Agreement,
    experiment: Experiment,
    method: Algorithm,
    seed: int,
    federation: Federation,
) -> ClientSide:
    """What a site's work needs under one method and seed."""
    task = make_model(agreement, experiment, seed, federation)
    cohort = experiment.cohort_size(agreement.seats)
    info = FederationInfo(agreement.seats, cohort, task.layout)
    compression = make_compression(experiment.engine.compression, experiment.engine.top_k)
    return ClientSide(
        method,
        task,
        federation,
        seed,
        task.initial(),
        info,
        experiment.rounds,
        compression=compression,
    )


def frozen_digests(agreement: Agreement, experiment: Experiment, federation: Federation) -> str:
    """By which server and sites know that they hold the same frozen values, under every seed.

    Empty where the model has none.
    """
    first, *others = experiment.seeds
    digest = make_model(agreement, experiment, first, federation).frozen_digest
    if digest is None:
        return ""
    made = (make_model(agreement, experiment, seed, federation) for seed in others)
    return " ".join([digest, *(str(task.frozen_digest) for task in made)])


def objective_of(agreement: Agreement, experiment: Experiment) -> Objective:
    """What the sites have agreed to be judged by; nothing of it is taken from anybody's data."""
    table = experiment.task
    if table.kind == "regression" and not (table.target_means and table.target_scales):
        raise UserError(
            "task.target_means, task.target_scales: sites cannot pool their targets to compute "
            "them; declare both in the experiment"
        )
    return make_objective(table, agreement.classes)
