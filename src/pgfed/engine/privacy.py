"""Privacy in a simulation: what is refused, each client's plan, and the view its work is done in.

The client's side is the same at a site, where `Protection` takes its randomness from the operating
system and class counts from the ledger (`federation/site/`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from torch import Tensor

from pgfed.config.privacy import Privacy
from pgfed.config.tables import Experiment
from pgfed.data.federation import Federation, Shard
from pgfed.data.tables.schema import Schema
from pgfed.engine.personal import counted, covered, leaves
from pgfed.errors import NOTES, UserError
from pgfed.methods.contract import Algorithm, FederationInfo
from pgfed.model.layout import Layout
from pgfed.model.private import checks
from pgfed.model.private.noise import Keyed, Source
from pgfed.model.private.policy import COUNTS, Meter, Policy, Releases, Unit
from pgfed.model.private.units import PrivateShard, Units
from pgfed.model.private.view import PrivateTask
from pgfed.model.task import Task
from pgfed.privacy import planning
from pgfed.privacy.planning import Plan

# -- what is refused, and what adapts --------------------------------------------------------------


def adapted(experiment: Experiment) -> Experiment:
    """With a split that looks at no label, where the experiment leaves it open."""
    data = experiment.data
    if data.stratify is True:
        raise UserError(
            "data.stratify: found true; a stratified split follows from all labels, which privacy "
            "cannot bound; under privacy allowed: false"
        )
    if data.stratify is False:
        return experiment
    if experiment.format > 1:
        NOTES.info("privacy: training and test are divided at random, not by class")
    return replace(experiment, data=replace(data, stratify=False))


def check_experiment(experiment: Experiment, schema: Schema | None) -> None:
    """Refuse what makes a client's inputs or targets follow from all of its records."""
    if experiment.attack.kind != "none":
        raise UserError("attack.kind: attacks are simulated without [privacy]; leave one out")
    public = experiment.task.target_means or (schema is not None and schema.target_scaling)
    if experiment.task.kind == "regression" and not public:
        raise UserError(
            "task.target_means: under privacy targets are standardised by public numbers; "
            "give task.target_means and task.target_scales"
        )
    if experiment.start_from is not None:
        NOTES.warning(
            "start_from: if that run trained on the same records without privacy, these are not "
            "protected"
        )
    if experiment.data.dataset == "heart-disease":
        raise UserError(
            "data.dataset: 'heart-disease' is standardised by each hospital's own records, as "
            "FLamby does it; under privacy use 'heart-disease-ranges', scaled by public ranges"
        )
    if schema is not None:
        check_schema(schema)


def check_schema(schema: Schema) -> None:
    """Refuse columns that each client scales, fills or lists by its own records."""
    for name, numbers in schema.numeric.items():
        if numbers.mean is None:
            raise UserError(
                f"data.schema: numeric.{name} is scaled by each site's own records; under privacy "
                "give mean and scale, from public ranges"
            )
    if schema.open_categories:
        raise UserError(
            f"data.schema: categorical.{schema.open_categories[0]} takes its categories from the "
            "data; under privacy list them"
        )


def check_vocabulary(experiment: Experiment, asked: Experiment) -> None:
    if experiment.model.vocabulary is not None and asked.model.vocabulary is None:
        raise UserError(
            "model.vocabulary: found none; under privacy it is not taken from the data: give it"
        )


def check_method(name: str, algorithm: Algorithm, layout: Layout) -> None:
    """Refuse what cannot be charged."""
    planning.check_method(name, algorithm, layout)
    if algorithm.personal.refresh and algorithm.shares_of(layout):
        raise UserError(
            f"personal.refresh: with {name} clients share what they have trained last, and that "
            "is exact; under privacy leave it out"
        )


def exempt(algorithm: Algorithm, layout: Layout) -> bool:
    """Whether nothing leaves a client: neither of the method, nor of what makes its models."""
    return planning.gives_nothing(algorithm, layout) and not leaves(algorithm)


def released(
    name: str,
    algorithm: Algorithm,
    task: Task,
    info: FederationInfo,
    size: int,
    table: Privacy,
    rounds: int,
) -> Releases:
    """What a participation of a client that says it has ``size`` units releases at most."""
    found = planning.dry_or_refuse(name, algorithm, task, info, size, table, rounds)
    return found | Counter({(COUNTS, 1.0): 1}) if counted(algorithm) else found


def unit_of(table: Privacy, federation: Federation) -> Unit:
    """A patient where the data names patients, unless a record is asked for."""
    if table.unit == "group" and federation.group is None:
        raise UserError("privacy.unit: found 'group', but the data names no groups (schema: group)")
    return table.unit or ("record" if federation.group is None else "group")


# -- plans ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """Every protected method's plans, by seed and client; and what all have in common."""

    table: Privacy
    unit: Unit
    loss_scale: float
    plans: Mapping[str, Mapping[int, tuple[Plan, ...]]]  # method -> seed -> a plan per client

    def record(self, methods: Mapping[str, Algorithm]) -> dict[str, list[dict[str, object]]]:
        """Of each protected method every client's plan under the first seed, for files."""
        return {
            name: [
                {**made.record(), "covered": covered(methods[name])}
                for made in next(iter(seeds.values()))
            ]
            for name, seeds in self.plans.items()
        }

    def protection(self, method: str, seed: int) -> Protection | None:
        """For the runs of a method; None where nothing of it leaves."""
        if method not in self.plans:
            return None
        plans = self.plans[method][seed]
        return Protection(
            {i: plan.policy(self.table, self.loss_scale) for i, plan in enumerate(plans)}, seed
        )


def plan(
    experiment: Experiment,
    federation: Federation,
    methods: Mapping[str, Algorithm],
    task: Task,
    cohort: int,
) -> Planned:
    """What every client will release under every method and seed, and the noise for it."""
    table = experiment.privacy
    checks.check_objective(task.objective)
    checks.check_model(task)
    unit = unit_of(table, federation)
    counted = [
        len(Units.of(federation.train(i), federation.groups(i) if unit == "group" else None))
        for i in range(len(federation))
    ]
    sizes = [table.size or planning.declared(n) for n in counted]
    info = FederationInfo(len(federation), cohort, task.layout)
    keys = None if federation.keys is None else list(federation.keys)
    scale = checks.loss_scale(task.objective, task.outputs, table.loss_scale)
    plans: dict[str, dict[int, tuple[Plan, ...]]] = {}
    for name, algorithm in methods.items():
        unprotected = algorithm.course == "pooled" or name in table.without
        if unprotected or exempt(algorithm, task.layout):
            continue
        check_method(name, algorithm, task.layout)
        releases = {
            size: released(name, algorithm, task, info, size, table, experiment.rounds)
            for size in sorted(set(sizes))
        }
        if scale is None and any(map(planning.needs_scale, releases.values())):
            raise UserError(
                f"privacy.loss_scale: {name} sums losses, whose bound does not follow from the "
                "task; give one"
            )
        plans[name] = {}
        for seed in experiment.seeds:
            drawn = planning.participations(seed, experiment.rounds, len(federation), cohort, keys)
            plans[name][seed] = tuple(
                planning.make_plan(
                    table,
                    releases[size],
                    size=size,
                    unit=unit,
                    participations=times,
                    d=task.d,
                )
                for size, times in zip(sizes, drawn, strict=True)
            )
            _check_cap(name, plans[name][seed], drawn)
    return Planned(table, unit, scale or 1.0, plans)


def _check_cap(name: str, plans: tuple[Plan, ...], drawn: list[int]) -> None:
    """A simulation has no sites that refuse: it must fit."""
    for i, (made, times) in enumerate(zip(plans, drawn, strict=True)):
        if made.participations < times:
            raise UserError(
                f"privacy: {name}: client {i} is drawn {times} times, and its budget is for "
                f"{made.participations}; take fewer rounds, more noise or a larger epsilon"
            )


# -- the view ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Protection:
    """How clients' units are protected in the runs of one method under one seed."""

    policies: Mapping[int, Policy]
    seed: int

    def size(self, client: int) -> int:
        return self.policies[client].size

    def source(self, key: int, *purpose: object) -> Source:
        """In a simulation keyed, so that it can be repeated."""
        return Keyed("privacy", self.seed, key, *purpose)

    def units(self, federation: Federation, client: int) -> Units:
        grouped = self.policies[client].unit == "group"
        return Units.of(federation.train(client), federation.groups(client) if grouped else None)

    def view(
        self,
        task: Task,
        federation: Federation,
        algorithm: Algorithm,
        client: int,
        round: int,
    ) -> tuple[PrivateTask, Shard]:
        """The task and the data as a method sees them in one call."""
        policy, key = self.policies[client], federation.key(client)
        units, who = self.units(federation, client), algorithm.name
        ours = planning.is_ours(algorithm)
        view = PrivateTask(
            task, policy, self.source(key, round), Meter(), who=who, offers_home=ours
        )

        @cache
        def counts(classes: int) -> Tensor:
            return self.counts(view, units, key, classes)

        return view, PrivateShard(units, policy.size, who, counts)

    def class_counts(self, task: Task, federation: Federation, client: int) -> Tensor:
        """The same, for what is made of the client's model."""
        policy, key = self.policies[client], federation.key(client)
        view = PrivateTask(task, policy, self.source(key), Meter(), who="class counts")
        return self.counts(view, self.units(federation, client), key, task.outputs)

    def counts(self, view: PrivateTask, units: Units, key: int, classes: int) -> Tensor:
        """The noisy counts of a client's classes: the same in every round."""
        once = PrivateTask(
            view, view.policy, self.source(key, "counts"), view.meter, who="class counts"
        )
        return once.counts(units, classes)
