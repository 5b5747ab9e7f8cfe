"""What cannot be charged is refused by name, with the way out; what adapts is said."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pgfed.config.experiment import from_dict
from pgfed.data.federation import Federation, Shard
from pgfed.engine.client import ClientError
from pgfed.engine.runs import execute
from pgfed.engine.setup import Setup, prepare
from pgfed.errors import UserError
from pgfed.methods import Algorithm, Message, Rng, State, Task, Update, sgd
from pgfed.methods.fedavg import FedAvg
from pgfed.model.kinds import Classes
from pgfed.model.networks import Factory
from pgfed.model.private.checks import check_model
from pgfed.model.private.gradients import by_vmap, pieces
from pgfed.model.private.units import Units
from pgfed.testing import batch_norm_model, frozen_and_tied_model
from privacy.material import mlp, samples

PRIVACY = {"noise_multiplier": 2.0, "delta": 1e-3}


def clients(**more: Any) -> Federation:
    rng = np.random.default_rng(0)
    client = np.repeat([0, 1, 2], 60)
    x = rng.normal(size=(180, 4)).astype(np.float32)
    return Federation.from_arrays(x, rng.integers(0, 2, 180), client=client, **more)


def ready(
    content: dict[str, Any], model: Factory | None = None, federation: Federation | None = None
) -> Setup:
    content = {"rounds": 2, "methods": ["fedavg"], "privacy": PRIVACY, "format": 2} | content
    return prepare(from_dict(content), Path(), federation=federation or clients(), model=model)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"task": {"class_weights": "balanced"}}, "task.class_weights: found 'balanced'"),
        ({"data": {"stratify": True}}, "data.stratify: found true"),
        ({"method": {"per-fedavg": {"variant": "hf"}}, "methods": ["per-fedavg"]}, "use 'fo'"),
        ({"method": {"per-fedavg": {"variant": "hvp"}}, "methods": ["per-fedavg"]}, "use 'fo'"),
        ({"personal": {"refresh": True}, "methods": ["fedper"]}, "personal.refresh: with fedper"),
        ({"attack": {"kind": "noise"}}, "attack.kind"),
        ({"privacy": {"epsilon": 1.0, "delta": 0.1}}, "privacy.delta: found 0.1"),
        ({"privacy": {**PRIVACY, "unit": "group"}}, "privacy.unit: found 'group'"),
        ({"privacy": {"without": ["fedavg"]}}, "give one"),
        ({"privacy": {**PRIVACY, "without": ["pgfed"]}}, "privacy.without"),
        ({"privacy": {"noise_multiplier": -1.0}}, "privacy.noise_multiplier: found -1.0"),
        ({"data": {"dataset": "heart-disease"}}, "heart-disease-ranges"),
        ({"privacy": {"noise_multiplier": 2.0, "epsilon": 0.01, "delta": 1e-3}}, "its budget is"),
    ],
)
def test_refused(content: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError) as error:
        ready(content)
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_chosen_or_trained_once_more_at_home_is_not_covered() -> None:
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"refresh": True}, False),
        ({"blend": "auto"}, False),
        ({"blend": 0.5}, True),
    ]
    for own, covered in cases:
        setup = ready({"personal": own, "methods": ["fedavg-local"]})
        assert setup.privacy is not None
        said = setup.privacy.record(setup.methods)["fedavg-local"]
        assert all(plan["covered"] is covered for plan in said)


def test_a_frame_costs_class_counts_once() -> None:
    for frame, counts in (("none", 0), ("training", 1), ("serving", 1)):
        setup = ready({"personal": {"frame": frame}})
        assert setup.privacy is not None
        assert setup.privacy.plans["fedavg"][0][0].total["counts", 1.0] == counts


def test_batch_norm_is_refused_by_its_type() -> None:
    def silent(shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Keeps no statistics: vmap would take it for something else without a word."""
        norm = nn.BatchNorm1d(8, track_running_stats=False)
        return nn.Sequential(nn.Linear(shape[0], 8), norm, nn.Linear(8, outputs))

    for model in (batch_norm_model, silent):
        with pytest.raises(UserError, match=r"BatchNorm1d, which mixes.*group norm"):
            ready({}, model)


def test_a_model_that_looks_at_the_whole_batch_is_refused() -> None:
    class Centred(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            return out - out.mean(0)

    with pytest.raises(UserError, match="depends on the others of its batch"):
        ready({}, lambda shape, outputs: nn.Sequential(Centred(shape[0], outputs)))


class Ranked(Classes):
    """A loss that is a sample's among the others of its batch."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found = super().losses(outputs, targets)
        return found - found.mean()


def test_losses_that_look_at_the_whole_batch_are_refused() -> None:
    task = Task(nn.Linear(4, 2), (4,), objective=Ranked(["0", "1"]))
    with pytest.raises(UserError, match=r"Ranked\.losses of a sample depends on the others"):
        check_model(task)


def test_a_frozen_batch_norm_passes() -> None:
    assert ready({}, frozen_and_tied_model).privacy is not None


@pytest.mark.parametrize("sent", [True, False])
def test_a_model_that_writes_a_buffer_is_refused(sent: bool) -> None:
    """What is not sent itself reaches the gradients of other samples."""

    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.register_buffer("last", torch.zeros(4), persistent=sent)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x + self.last)
            if self.training:
                self.last.copy_(x.detach().mean(0))
            return out

    with pytest.raises(UserError, match="changes a buffer"):
        ready({}, lambda shape, outputs: Remembers())


def test_a_mask_that_is_made_once_passes() -> None:
    class Masks(nn.Linear):
        mask: Tensor | None

        def forward(self, x: Tensor) -> Tensor:
            if getattr(self, "mask", None) is None:
                self.register_buffer("mask", torch.ones(x.shape[1]), persistent=False)
            return super().forward(x * self.mask)

    assert ready({}, lambda shape, outputs: nn.Sequential(Masks(4, outputs))).privacy is not None


def test_patients_are_the_unit_where_the_data_names_them() -> None:
    federation = clients(group=np.arange(180) // 3)
    setup = ready({}, federation=federation)
    assert setup.privacy is not None
    plan = setup.privacy.plans["fedavg"][0][0]
    assert (plan.unit, plan.size) == ("group", 15)
    asked = ready({"privacy": {**PRIVACY, "unit": "record"}}, federation=federation)
    assert asked.privacy is not None
    assert asked.privacy.plans["fedavg"][0][0].unit == "record"


def test_regression_needs_public_numbers() -> None:
    y = np.random.default_rng(0).normal(size=(180, 1)).astype(np.float32)
    x, client = np.ones((180, 4), np.float32), np.repeat([0, 1, 2], 60)
    federation = Federation.from_arrays(x, y, client=client, targets="values")
    with pytest.raises(UserError, match=r"task\.target_means"):
        ready({"task": {"kind": "regression"}}, federation=federation)
    scaled = {"kind": "regression", "target_means": [0.0], "target_scales": [1.0]}
    assert ready({"task": scaled}, federation=federation).privacy is not None
    with pytest.raises(UserError, match=r"privacy\.loss_scale: pgfed sums losses"):
        ready({"task": scaled, "methods": ["pgfed"]}, federation=federation)


@dataclass(frozen=True, kw_only=True)
class Peeks(Algorithm):
    """Looks at the labels."""

    name = "peeks"
    leaves = {"w": "model", "n": "count"}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        w, _ = sgd(task, message["w"] + data.y.float().mean(), data, rng, self.train)
        return {}, {"w": w, "n": len(data)}


@dataclass(frozen=True, kw_only=True)
class GoesHome(Algorithm):
    name = "goes-home"
    leaves = {"w": "model", "n": "count"}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        w, _ = sgd(task.home, message["w"], data, rng, self.train)
        return {}, {"w": w, "n": len(data)}


@pytest.mark.parametrize(("cls", "call"), [(Peeks, "data.y"), (GoesHome, "task.home")])
def test_a_method_of_ones_own_that_goes_round_is_refused(cls: type, call: str) -> None:
    name = f"{cls.__module__}:{cls.__name__}"
    with pytest.raises(UserError, match=f"cannot be run with privacy: .*{call}"):
        ready({"methods": [name]})


@dataclass(frozen=True, kw_only=True)
class TunesAtTheEnd(FedAvg):
    """Is fine-tuned, and has the word that it may leave from what it follows."""

    name = "tunes"

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        return sgd(task, public["w"], data, rng, self.train)[0]


@dataclass(frozen=True, kw_only=True)
class PeeksLater(FedAvg):
    """Behaves until it has seen the dry run."""

    name = "peeks-later"

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        w: Tensor = public["w"]
        return w + data.y.float().mean() if rng.round > 3 else w


def test_a_model_that_is_called_covered_is_made_without_samples() -> None:
    with pytest.raises(UserError, match="makes it of samples in personal_model; say covered"):
        ready({"methods": [f"{__name__}:TunesAtTheEnd"]})
    setup = ready({"methods": [f"{__name__}:PeeksLater"], "rounds": 5})
    with pytest.raises(ClientError, match=r"asks for data\.y, which privacy does not give"):
        execute(setup, [])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.gru(x.view(len(x), 2, 2))[0][:, -1])
        return out


@pytest.mark.parametrize("module", [Recurrent, None])
def test_both_ways_to_single_gradients_agree_with_single_batches(module: Any) -> None:
    """Against one plain backward pass per sample."""
    task = mlp(4, 2) if module is None else Task(Recurrent(), (4,))
    assert by_vmap(task) is (module is None)
    shard = samples(5, 4, 2)
    theta = task.initial()
    norms, total = [], torch.zeros(task.d)
    for piece in pieces(task, theta, Units(shard), torch.arange(5)):
        norms += piece.norms.tolist()
        piece.add(torch.full((len(piece.norms),), 0.5), total)
    single = [task.gradient(theta, *shard.batch(slice(i, i + 1))) for i in range(5)]
    assert norms == pytest.approx([float(g.norm()) for g in single], rel=1e-4)
    assert torch.allclose(total, torch.stack(single).sum(0) / 2, atol=1e-5)
