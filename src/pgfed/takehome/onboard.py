"""`pgfed onboard`: a site that was not there gets a model.

The method's global model is fine-tuned on the new site's training data; training alone, from the
start that all clients shared, goes beside it. How many epochs are worth while is chosen on a
validation share of the training data; the test data only tells how good the result is, and who
cannot be told apart from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgfed.config.tables import Data
from pgfed.data import matching as agreed
from pgfed.data.augment import augmentation
from pgfed.data.federation import Federation, Shard, build_seat
from pgfed.engine.client import one_thread
from pgfed.engine.storage.durable import write_atomic
from pgfed.errors import UserError
from pgfed.methods import registry as algorithms
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import TrainConfig
from pgfed.methods.steps import fine_tuned
from pgfed.model import frames
from pgfed.model.metrics import Metric
from pgfed.model.networks import factory, make_task
from pgfed.model.task import Task
from pgfed.modules import NONE, Allowed
from pgfed.report.figures.colours import GREY
from pgfed.results.folder import layout
from pgfed.results.folder.layout import csv_text
from pgfed.results.formats import axis, factor
from pgfed.results.gains.clients import Gain, gain_between
from pgfed.results.gains.resampling import Measure, measure_of
from pgfed.results.kept import manifest as manifests
from pgfed.results.kept.models import Model, kept_models
from pgfed.results.kept.writing import write_frozen, write_model
from pgfed.results.runs import Evidence, RunData
from pgfed.results.summary import number
from pgfed.takehome.figures import drawing
from pgfed.takehome.metrics import objective_of

ALONE = algorithms.BASELINE
VALIDATION = 0.2  # of the training data, where the run has no validation share of its own
FILE = "model.safetensors"
# Settings of the fine-tuning.
TRAINED = (
    *("batch_size", "lr", "momentum", "optimizer", "weight_decay", "clip", "augment", "precision"),
)


@dataclass(frozen=True)
class Epoch:
    """The model after this many epochs; None where there is no test data."""

    epoch: int
    validation_score: float  # NaN where it is undefined
    validation_loss: float
    test_score: float | None
    test_loss: float | None


@dataclass(frozen=True)
class Newcomer:
    """What one method offers the new site."""

    method: str
    start: str  # what it starts from, in words
    source: dict[str, Any]  # the manifest of the model it starts from
    curve: list[Epoch]
    epochs: int  # recommended, chosen on the validation share
    values: dict[str, Tensor]  # the model after so many, as the module's state_dict
    evidence: Evidence | None  # what that model gives for each test sample, if there are any

    @property
    def before(self) -> Epoch:
        return self.curve[0]

    @property
    def after(self) -> Epoch:
        return self.curve[self.epochs]


@dataclass(frozen=True)
class Onboarding:
    data: str
    seed: int
    train: TrainConfig
    site: Federation  # of one client
    newcomers: list[Newcomer]  # training alone comes first
    task: Task
    measure: Measure  # of the metric

    @property
    def metric(self) -> Metric:
        return self.task.objective.primary

    @property
    def best(self) -> Newcomer:
        """By validation data; where several are equal, the first: training alone needs nobody."""
        return max(self.newcomers, key=lambda n: _standing(n.after, self.metric))

    def gain(self, newcomer: Newcomer, over: Newcomer) -> Gain | None:
        """On the site's test samples, with how surely; None where there are none."""
        a, b = newcomer.evidence, over.evidence
        scores = newcomer.after.test_score, over.after.test_score
        if a is None or b is None or scores[0] is None or scores[1] is None:
            return None
        each = np.array([[scores[0]]]), np.array([[scores[1]]])
        return gain_between([(a, b)], each, np.diff(a.offsets), self.measure)

    @property
    def tied(self) -> list[Newcomer]:
        """Those that test samples cannot tell from the best."""
        others = [n for n in self.newcomers if n is not self.best]
        return [n for n in others if not is_clear(self.gain(self.best, n))]

    def as_json(self) -> dict[str, Any]:
        return {
            "data": self.data,
            "seed": self.seed,
            "samples": self.site.table()[0],
            "recommended_method": self.best.method,
            "tied_methods": [n.method for n in self.tied],
            "methods": [
                {
                    "method": n.method,
                    "start": n.start,
                    "recommended_epochs": n.epochs,
                    "gain": _plain(self.gain(n, self.newcomers[0])),
                    "curve": [asdict(epoch) for epoch in n.curve],
                }
                for n in self.newcomers
            ],
        }


def is_clear(gain: Gain | None) -> bool:
    """Whether a site's test samples say that it gained or lost."""
    return gain is not None and gain.statements[0] in ("clearly gained", "clearly lost")


def _plain(gain: Gain | None) -> dict[str, float | None] | None:
    if gain is None:
        return None
    sides = (("mean", gain.per_client), ("low", gain.low), ("high", gain.high))
    return {name: number(float(values[0])) for name, values in sides}


def onboard(
    run: RunData,
    data: str,
    *,
    method: str | None,
    seed: int | None,
    epochs: int,
    lr: float | None,
    data_root: Path,
    skip_bad: bool = False,
    allowed: Allowed = NONE,
) -> Onboarding:
    """Fine-tune for the new site, from each method asked for and from the untrained start."""
    if lr is not None and not 0 < lr < float("inf"):
        raise UserError(f"--lr: found {lr}; allowed: a number above 0")
    chosen = layout.choose_seed(run.experiment, seed)
    methods = layout.choose_methods(run.experiment, run.path, method)
    models = {name: kept_models(run.path, name, chosen, allowed).shared_model() for name in methods}
    first = next(iter(models.values()))
    first.check_module()
    about = first.manifest
    site = _site(data, data_root, first, run.experiment.data, skip_bad)
    task = make_task(
        factory(about.model, about.model_options),
        about.shape,
        len(about.classes),
        seed=chosen,
        example=site.example(),
        head=about.head,
        objective=objective_of(first, allowed),
    )
    task.put_frozen(first.values)
    task = task.view(site.train(0))  # whose classes may weigh what they weigh there
    own = run.experiment.train
    allowed.check("train.augment", own.augment, run.path / layout.EXPERIMENT)
    task.augment = augmentation(own.augment)
    task.bfloat16 = own.precision == "bfloat16"
    train = replace(own, epochs=epochs, lr=own.lr if lr is None else lr)
    # The new site's seat is the one after the last.
    streams = [Rng(chosen, len(about.clients), epoch) for epoch in range(epochs)]
    untrained = {"method": ALONE, "round": 0, "hyperparameters": {"train": asdict(train)}}
    starts = {ALONE: (task.initial(), {**about.about(), **untrained})}
    for name, model in models.items():
        if name != ALONE:
            starts[name] = (_framed(task, _flat(task, model), model, site), model.entry)
    newcomers = []
    with one_thread():
        for name, (theta, source) in starts.items():
            curve, best, tuned = tune(task, theta, site, streams, train)
            start = _start(run, name, allowed)
            found = _evidence(task, tuned, site)
            newcomers.append(Newcomer(name, start, source, curve, best, task.named(tuned), found))
    return Onboarding(data, chosen, train, site, newcomers, task, measure_of(run))


def _evidence(task: Task, theta: Tensor, site: Federation) -> Evidence | None:
    """What a model gives for each of the site's test samples."""
    test, objective = site.test(0), task.objective
    if not len(test):
        return None
    pairs = task.predictions(theta, test)
    outcome = torch.cat([objective.outcomes(found, y).cpu() for found, y in pairs]).float()
    outputs = target = None
    if objective.targets != "masks":
        outputs = torch.cat([found for found, _ in pairs]).float().cpu().numpy()
        target = torch.cat([y for _, y in pairs]).cpu().numpy()
    group = site.groups(0, part=2)
    return Evidence(np.array([0, len(test)]), outcome.numpy(), outputs, target, group)


def _site(data: str, root: Path, model: Model, table: Data, skip_bad: bool) -> Federation:
    """The new site's samples, with a validation share to choose the number of epochs on."""
    about, schema = model.manifest, model.table
    dataset = agreed.load(
        data,
        root,
        classes=about.classes,
        input_shape=about.shape,
        input_type=about.normalisation.input,
        targets=about.targets,
        image_size=about.image_size,
        skip_bad=skip_bad,
        schema=schema,
    )
    site = build_seat(
        dataset,
        0,
        ["0"],
        test_share=table.test_share,
        validation_share=table.validation_share or VALIDATION,
        seed=table.seed,
        stratify=table.stratify,
    )
    if not site.n_validation[0]:
        raise UserError(
            f"{data}: {site.n_train[0]} training samples are too few to set a validation share "
            "aside, on which the number of epochs is chosen"
        )
    return site


def _start(run: RunData, method: str, allowed: Allowed) -> str:
    """What a new client starts from, in words; 0.1 did not write that down."""
    said = run.methods[method].new_client_start if method in run.methods else None
    if said:
        return said
    base = run.experiment.base(method)
    allowed.check("methods", base, run.path / layout.EXPERIMENT)
    return algorithms.get(base).new_client_start


def tune(
    task: Task, theta: Tensor, site: Federation, streams: Sequence[Rng], train: TrainConfig
) -> tuple[list[Epoch], int, Tensor]:
    """The scores before and after every epoch, the best epoch, and its model."""
    curve = [_scored(task, theta, site, 0)]
    best, kept = 0, theta
    tuned = fine_tuned(task, theta, site.train(0), streams, train)
    for epoch, after in enumerate(tuned, start=1):
        curve.append(_scored(task, after, site, epoch))
        if _better(curve[epoch], curve[best], task.objective.primary):
            best, kept = epoch, after
    return curve, best, kept


def _better(new: Epoch, old: Epoch, metric: Metric) -> bool:
    """By the metric, then by loss; equal: the one with fewer epochs stays."""
    if not np.isfinite(new.validation_loss):
        return False
    return _standing(new, metric) > _standing(old, metric)


def _standing(epoch: Epoch, metric: Metric) -> tuple[float, float]:
    """More is better. Where the metric is undefined, as AUC with one class only, the loss alone."""
    undefined = np.isnan(epoch.validation_score)
    return 0.0 if undefined else metric.sign * epoch.validation_score, -_loss(epoch)


def _loss(epoch: Epoch) -> float:
    return epoch.validation_loss if np.isfinite(epoch.validation_loss) else np.inf


def _scored(task: Task, theta: Tensor, site: Federation, epoch: int) -> Epoch:
    validation, test = site.validation(0), site.test(0)
    score, loss = _score(task, theta, validation)
    on_test = _score(task, theta, test) if len(test) else (None, None)
    return Epoch(epoch, np.nan if score is None else score, loss, *on_test)


def _score(task: Task, theta: Tensor, data: Shard) -> tuple[float | None, float]:
    found = task.score(theta, data)
    return found.score, found.loss / found.n


def _flat(task: Task, model: Model) -> Tensor:
    try:
        return task.flat(model.values)
    except (KeyError, RuntimeError) as error:
        raise UserError(f"{model.path}: does not fit its model ({error})") from None


def _framed(task: Task, theta: Tensor, model: Model, site: Federation) -> Tensor:
    """The global model with the new site's own class shares folded in, as its method does it."""
    about = model.manifest
    if about.frame == "none" or (about.frame == "serving" and about.class_shares is None):
        return theta  # of an own model without a blend nothing is corrected
    frames.check(task, "all", f"{model.path}: personal.frame")
    counts = site.train(0).class_counts(task.outputs)
    if about.frame == "training":
        return task.folded(theta, frames.own_frame(counts))
    return task.folded(theta, frames.corrected(counts, torch.tensor(about.class_shares)))


# -- what is written ---------------------------------------------------------------------------


def write(result: Onboarding, out: Path) -> None:
    """METHOD/model.safetensors, manifest.json and curve.csv, for each method."""
    for newcomer in result.newcomers:
        folder = out / newcomer.method
        try:
            folder.mkdir(parents=True)
            rows = [asdict(epoch) for epoch in newcomer.curve]
            write_atomic(folder / "curve.csv", csv_text(rows))
            file = write_model(folder / FILE, newcomer.values)
            frozen = write_frozen(folder, result.task)
            manifests.write(folder, {**_manifest(newcomer, result, file), "frozen": frozen})
        except OSError as error:
            where = error.filename or folder
            raise UserError(f"{where}: cannot be written ({error.strerror})") from None


def _manifest(newcomer: Newcomer, result: Onboarding, file: dict[str, str]) -> dict[str, Any]:
    source = {k: v for k, v in newcomer.source.items() if k not in ("role", "file", "sha256")}
    after, alone = newcomer.after, result.newcomers[0].after
    gain = None
    if after.test_score is not None and alone.test_score is not None:
        gain = round(result.metric.sign * (after.test_score - alone.test_score), 9)
    sizes = {k: v for k, v in result.site.table()[0].items() if k.startswith("n_")}
    return {
        **source,
        "data_fingerprint": result.site.fingerprint,
        "onboarded": {
            "start": newcomer.start,
            "start_sha256": newcomer.source.get("sha256"),
            "epochs": newcomer.epochs,
            **{k: v for k, v in asdict(result.train).items() if k in TRAINED},
        },
        "clients": [
            {
                "client": "0",
                "id": 0,
                **sizes,
                "score": after.test_score,
                "loss": after.test_loss,
                "validation_score": number(after.validation_score),
                "gain": gain,
                **manifests.fitted_table(result.site, 0),
                **file,
            }
        ],
    }


def figure(result: Onboarding, path: Path) -> Path:
    """Save the learning curves (PNG, SVG, PDF)."""
    axes, save = drawing(path, (7, 4))
    for newcomer in result.newcomers:
        epochs = [epoch.epoch for epoch in newcomer.curve]
        scores = [factor(result.metric) * epoch.validation_score for epoch in newcomer.curve]
        name = "alone" if newcomer.method == ALONE else newcomer.method
        own = {"color": GREY} if newcomer.method == ALONE else {}  # as in every figure
        (line,) = axes.plot(epochs, scores, label=name, linewidth=1.5, **own)
        axes.plot(newcomer.epochs, scores[newcomer.epochs], "o", color=line.get_color())
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("epochs of fine-tuning (dot: recommended)")
    axes.set_ylabel(f"{axis(result.metric)}, on the validation share")
    axes.legend(fontsize=8)
    return save()
