"""An experiment made ready: its data, its model and its methods, checked."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pgfed.config.experiment import IN_MEMORY, make_methods
from pgfed.config.tables import DEFAULT_COHORT, FORMAT, Data, Experiment, Model
from pgfed.data import DEFAULT_CLIENTS, datasets
from pgfed.data.augment import check_augment
from pgfed.data.datasets import Dataset
from pgfed.data.federation import Federation, build
from pgfed.data.tables import schema as schemas
from pgfed.data.tables.schema import Schema
from pgfed.engine import privacy as protecting
from pgfed.engine.backends.base import Backend, Serial
from pgfed.engine.backends.process import Process
from pgfed.engine.exchange.attacks import Attack
from pgfed.engine.objective import completed, make_objective, targets_of
from pgfed.engine.personal import fitted
from pgfed.errors import NOTES, UserError
from pgfed.methods.contract import Algorithm
from pgfed.methods.roles import rounds_of
from pgfed.model import precision
from pgfed.model.layout import Layout
from pgfed.model.networks import Factory, default_model, factory, make_task, vocabulary
from pgfed.model.objectives import BuiltIn, Objective
from pgfed.model.task import Task

FEW_SITES = 10  # fewer than this take part in every round, unless the experiment says otherwise
DEVICES = ("cpu", "cuda", "mps", "xpu")


@dataclass(frozen=True)
class Setup:
    """An experiment that is ready to run: whatever can be wrong with it has been checked."""

    experiment: Experiment  # resolved: running it again repeats the run
    federation: Federation
    methods: dict[str, Algorithm]  # by the name of their folder
    model: Factory
    layout: Layout
    objective: Objective
    frozen: str | None = None  # the SHA-256 of what is never trained, under the first seed
    privacy: protecting.Planned | None = None  # what every client will release, and its noise

    @property
    def cohort(self) -> int:
        """M, the number of clients drawn per round."""
        return self.experiment.cohort_size(len(self.federation))

    def backend(self) -> Backend:
        engine = self.experiment.engine
        common: dict[str, Any] = {
            "device": engine.device,
            "head": self.experiment.model.head,
            "objective": self.objective,
        }
        if engine.backend == "serial":
            return Serial(self.federation, self.model, **common)
        common |= {"workers": engine.workers, "per_device": engine.workers_per_device}
        if engine.backend == "ray":
            from pgfed.engine.backends.ray import Ray

            return Ray(self.federation, self.model, address=engine.address, **common)
        return Process(self.federation, self.model, **common)

    def rounds(self, method: str) -> int:
        """How many a method takes."""
        return rounds_of(self.methods[method].course, self.experiment.rounds)

    def protection(self, method: str, seed: int) -> protecting.Protection | None:
        """How the clients of a run are protected."""
        return None if self.privacy is None else self.privacy.protection(method, seed)

    @property
    def attack(self) -> Attack | None:
        """The attack that some clients simulate."""
        table = self.experiment.attack
        return None if table.kind == "none" else Attack(table.kind, table.share, table.strength)

    def about_model(self) -> dict[str, Any]:
        """How many numbers the model has, and how many travel, each way, when a client takes part;
        what is frozen never does."""
        layout = self.layout

        def sent(method: Algorithm) -> int:
            # A bound has the data in one place: nothing is sent.
            sends = {"model", "step"} & set(method.leaves.values()) and method.role != "bound"
            return layout.shared(method.shared).size if sends else 0

        return {
            "trained": layout.d,
            "buffers": layout.extra,
            "travels": {name: sent(method) for name, method in self.methods.items()},
            "frozen": layout.frozen,
            "frozen_bytes": layout.frozen_bytes,
            "frozen_sha256": self.frozen,
        }

    def keeps_models(self, seed: int) -> bool:
        """Whether the models of this seed are kept."""
        kept = self.experiment.output.models
        return kept == "all" or (kept == "last" and seed == self.experiment.seeds[-1])


def prepare(
    experiment: Experiment,
    data_root: Path,
    *,
    federation: Federation | None = None,
    model: Factory | None = None,
) -> Setup:
    """Check the methods, the device, the data and the model, and fill in what depends on them."""
    methods, experiment = make_methods(experiment)
    _check_device(experiment.engine.device)
    if experiment.privacy.on:
        experiment = protecting.adapted(experiment)
    data = experiment.data
    if federation is None:
        federation, data = load_federation(experiment, data_root)
    if experiment.privacy.on:
        protecting.check_experiment(experiment, federation.schema)
    asked, experiment = experiment, with_cohort(experiment, federation)
    _say_sites(asked, experiment, federation, data)
    if experiment.output.keep == "best" and not federation.n_validation.any():
        raise UserError(
            "output.keep: found 'best', which is chosen on validation data, and there is none; "
            "set data.validation_share above 0, or keep = 'last'"
        )
    table = completed(experiment.task, federation)
    objective = make_objective(table, federation.class_names)
    if experiment.attack.kind == "label-flip" and not objective.classifies:
        raise UserError("attack.kind: 'label-flip' needs classes; choose another")
    if isinstance(objective, BuiltIn):  # one of a user's own has no choice
        table = replace(table, metric=objective.metric)
    experiment = replace(experiment, model=with_model(experiment.model, federation))
    built = factory(model or str(experiment.model.name), experiment.model.options)
    task = make_task(
        built,
        federation.input_shape,
        len(federation.class_names),
        seed=experiment.seeds[0],
        example=federation.example(),
        head=experiment.model.head,
        objective=objective,
    )
    methods, experiment = fitted(methods, experiment, task)
    _check_methods(methods, task, federation, experiment.engine.device)
    _say_split(federation, data)
    if experiment.start_from is not None:
        place = str(Path(experiment.start_from).expanduser().absolute())
        experiment = replace(experiment, start_from=place)
    resolved = replace(experiment, format=FORMAT, data=data, task=table)
    plans = None
    if experiment.privacy.on:
        protecting.check_vocabulary(experiment, asked)
        cohort = experiment.cohort_size(len(federation))
        plans = protecting.plan(experiment, federation, methods, task, cohort)
    return Setup(
        resolved,
        federation,
        methods,
        built,
        task.layout,
        objective,
        task.frozen_digest,
        plans,
    )


def with_model(model: Model, federation: Federation) -> Model:
    """The model's name and vocabulary, where the experiment leaves them to the data."""
    named = replace(model, name=model.name or default_model(federation))
    if named.name == "gru" and named.vocabulary is None and federation.x.dtype == torch.int64:
        return replace(named, vocabulary=vocabulary(federation))
    return named


def with_cohort(experiment: Experiment, federation: Federation) -> Experiment:
    """The share of the clients per round, where the experiment leaves it to the data."""
    if experiment.cohort is not None:
        return experiment
    few = federation.client_labels is not None and len(federation) < FEW_SITES
    return replace(experiment, cohort=1.0 if few else DEFAULT_COHORT)


def _say_sites(
    asked: Experiment, experiment: Experiment, federation: Federation, data: Data
) -> None:
    """What follows from the sites in the data, where nobody asked for it."""
    sites = asked.data.partition is None and data.partition == "given"
    drawn = asked.cohort is None and federation.client_labels is not None
    if not sites and not drawn:
        return
    n = len(federation)
    m = experiment.cohort_size(n)
    said = [f"{n} sites in the data, one client each"] if sites else []
    if drawn:
        said.append(f"{'all' if m == n else m} of the {n} clients in each round")
    keys = [key for key, on in (("data.partition", sites), ("cohort", drawn)) if on]
    change = f"{' and '.join(keys)} change{'s' if len(keys) == 1 else ''} it"
    NOTES.info(f"{asked.data.dataset}: {', '.join(said)} ({change})")


def _say_split(federation: Federation, data: Data) -> None:
    """Where classes are divided alike because each has enough samples."""
    if data.stratify == "auto" and federation.stratified:
        # Of clients that a partition made up, few care.
        level = logging.DEBUG if federation.client_labels is None else logging.INFO
        NOTES.log(
            level,
            f"{data.dataset}: training and test are stratified by class at {federation.stratified} "
            f"of {len(federation)} clients, where each class has enough samples (data.stratify "
            "changes it)",
        )


def _check_methods(
    methods: Mapping[str, Algorithm], task: Task, federation: Federation, device: str
) -> None:
    for algorithm in methods.values():
        algorithm.check_model(task)
        check_augment(algorithm.train.augment, federation)
    if check_precision(methods, task, federation):
        precision.say_if_slower(task, device)


def check_precision(methods: Mapping[str, Algorithm], task: Task, federation: Federation) -> bool:
    """Whether a method computes in bfloat16, which the model must be able to."""
    low = any(algorithm.train.precision == "bfloat16" for algorithm in methods.values())
    if low:
        precision.check(task, federation.example())
    return low


def load_federation(experiment: Experiment, root: Path) -> tuple[Federation, Data]:
    """The clients' data, and the [data] table that names it completely."""
    data = experiment.data
    if data.dataset == IN_MEMORY:
        raise UserError(
            "data.dataset: 'memory' was a run on arrays passed from Python, which a file cannot "
            "repeat; save them with numpy.savez and use npz:PATH"
        )
    schema, data = read_schema(data, root)
    dataset = datasets.load(
        data.dataset,
        root,
        image_size=data.image_size,
        skip_bad=data.skip_bad,
        targets=targets_of(experiment.task),
        schema=schema,
    )
    federation, resolved = divide(dataset, data, format=experiment.format)
    return federation, replace(resolved, dataset=_absolute(data.dataset, root))


def read_schema(data: Data, root: Path) -> tuple[Schema | None, Data]:
    """The schema that the table names, if any; the table with its full path and checksum."""
    if data.schema is None:
        return None, data
    place = Path(data.schema).expanduser()
    if not place.exists() and (root / place).exists():
        place = root / place
    schema, digest = schemas.load(place)
    if data.schema_sha256 not in (None, digest):
        raise UserError(
            f"data.schema: {place} is not the file that was agreed on or ran before (its SHA-256 "
            "is not data.schema_sha256); without that key any is taken"
        )
    return schema, replace(data, schema=str(place.absolute()), schema_sha256=digest)


def divide(dataset: Dataset, data: Data, *, format: int = FORMAT) -> tuple[Federation, Data]:
    """Divide a data set among clients as the table says; the table with what it left open."""
    # 0.1 saw nothing but domains in a folder's sites.
    named = dataset.client is not None and not (format == 1 and data.dataset.startswith("folder:"))
    kind = data.partition
    if kind is None:
        kind = "given" if named else "dirichlet" if dataset.targets == "classes" else "iid"
    federation = build(
        dataset,
        partition=kind,
        clients=data.clients or DEFAULT_CLIENTS,
        alpha=data.alpha,
        test_share=data.test_share,
        validation_share=data.validation_share,
        min_samples=data.min_samples,
        seed=data.seed,
        classes_per_client=data.classes_per_client,
        stratify=data.stratify,
        by_name=data.draws == "by-name",
    )
    clients = len(federation)
    if data.clients not in (None, clients):
        raise UserError(
            f"data.clients: found {data.clients}, but {dataset.name} names {clients} clients; "
            f"allowed with partition 'given': {clients}, or leave it out; another data.partition "
            "divides all samples anew"
        )
    taking_part = data.first_new(clients)
    if not taking_part:
        raise UserError(
            f"data.new_clients: {data.new_clients} of {clients} clients leaves none to train"
        )
    resolved = replace(data, clients=clients, partition=kind)
    return federation.between(0, taking_part) if data.new_clients else federation, resolved


def _absolute(dataset: str, root: Path) -> str:
    """Own data by its full path, so that the experiment can be repeated from any folder."""
    kind, colon, path = dataset.partition(":")
    if not colon:
        return dataset
    place = Path(path).expanduser()
    if not place.exists():
        place = root / place
    return f"{kind}:{place.absolute()}"


def _check_device(name: str) -> None:
    try:
        kind = torch.device(name).type
        if kind in DEVICES:
            torch.empty(0, device=name)
            return
        reason = f"allowed: {', '.join(DEVICES)}"
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
    raise UserError(f"engine.device: found {name!r}; {reason}")
