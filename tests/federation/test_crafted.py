"""What a malicious server gets with models made for it, and what a site can do today.

Everything here is asked as a server that a site has approved would ask: there is no privacy budget
in these experiments. The attacker knows what all know: the model, and that inputs are images.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from federation import small
from federation.test_house import opened
from federation.test_site import ask, greet, start
from pgfed.federation.folders.folder import SiteFolder
from pgfed.federation.site import record
from pgfed.federation.site.answers import Site
from pgfed.methods import registry

ONCE = {"epochs": 1, "batch_size": 0, "lr": 0.05, "momentum": 0.0}  # one step over all samples
INPUTS, HIDDEN, CLASSES = 64, 128, 10


@pytest.fixture(scope="module", params=["one step", "batches of 20"])
def made(request, tmp_path_factory):
    train = ONCE if request.param == "one step" else {**ONCE, "batch_size": 20}
    place = tmp_path_factory.mktemp("crafted")
    return small.make(place, methods=["fedavg"], cohort=1.0, rounds=5, train=train)


@pytest.fixture
def site(made, tmp_path) -> Site:
    return victim(made, tmp_path)


def victim(made, place, **limits) -> Site:
    shutil.copytree(small.site_path(made.path, 1), place / "site", dirs_exist_ok=True)
    site = opened(made, SiteFolder(place / "site"), **limits)
    greet(site)
    return site


def parts(w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights and biases of the two layers, as views of the flat vector."""
    sizes = (INPUTS * HIDDEN, HIDDEN, HIDDEN * CLASSES, CLASSES)
    a, b, c, d = torch.split(w, sizes)
    return a.view(HIDDEN, INPUTS), b, c.view(CLASSES, HIDDEN), d


def trapped(w: Tensor, scale: float = 1.0) -> Tensor:
    """Each hidden unit fires for the few images that lie far out in a direction of its own.

    What its weights and its bias then learn is in the ratio of the one image that made it fire.
    """
    rng = np.random.default_rng(0)
    crafted = w.clone()
    weights, biases, _, _ = parts(crafted)
    directions = rng.choice([-1.0, 1.0], size=(HIDDEN, INPUTS)) / 8
    blots = np.where(rng.random((4096, INPUTS)) < 0.5, -1.0, rng.uniform(-1, 1, (4096, INPUTS)))
    # Guessed from made-up images: dark, with ink here and there.
    cuts = np.quantile(blots @ directions.T, rng.uniform(0.95, 0.9999, HIDDEN), axis=0).diagonal()
    weights.copy_(scale * torch.tensor(directions))
    biases.copy_(-scale * torch.tensor(cuts))
    return crafted


def given_back(sent: Tensor, got: Tensor, images: Tensor) -> int:
    """How many of the site's training images stand in the update, pixel for pixel."""
    weights, biases, _, _ = (a - b for a, b in zip(parts(got), parts(sent), strict=True))
    told = biases.abs() > 1e-6
    guesses = weights[told] / biases[told][:, None]
    distance = torch.cdist(guesses.double(), images.double(), p=float("inf"))
    return len(set(distance.argmin(1)[distance.min(1).values < 0.02].tolist()))


def images_of(site: Site) -> Tensor:
    data = site.federation.train(1)
    return data.x.flatten(1).float() / 127.5 - 1


def test_trap_weights_give_training_images_back_from_one_answer(site):
    """No limit of the site's stops this; only a privacy budget would."""
    w = start(site)["w"]
    honest = ask(site, "train", {"w": w})[1]["update"]["w"]
    curious = given_back(w, honest, images_of(site))
    crafted = trapped(w)
    head, found = ask(site, "train", {"w": crafted})
    assert "error" not in head
    n = given_back(crafted, found["update"]["w"], images_of(site))
    print(f"{n} of {len(images_of(site))} training images came back ({curious} without traps)")
    assert n >= 5
    assert n > curious
    kinds = [(entry["kind"], entry["round"]) for entry in record.read(site.folder.path)[1:]]
    assert kinds == [("train", 1)] * 2  # but it is on record that two questions were answered


def test_a_model_of_zeros_gives_the_class_counts(made, tmp_path):
    site = victim(made, tmp_path)
    if site.methods["fedavg"].train.batch_size:
        pytest.skip("the closed form is for one step")
    w = torch.zeros_like(start(site)["w"])
    update = ask(site, "train", {"w": w})[1]["update"]["w"]
    # The mean gradient of the biases is softmax(0) - the share of each class.
    n = int(site.federation.n_train[1])
    shares = 0.1 + parts(update)[3].double() / ONCE["lr"]
    counts = torch.bincount(site.federation.train(1).y, minlength=CLASSES)
    assert (shares * n).round().long().tolist() == counts.tolist()


def test_a_bound_on_the_step_stops_models_that_shout(made, tmp_path):
    """Honest steps pass; weights that make gradients long do not leave, nor do traps scaled up."""
    site = victim(made, tmp_path, max_step=2.0)
    w = start(site)["w"]
    assert "error" not in ask(site, "train", {"w": w})[0]
    loud = 30 * trapped(w, 30.0)
    head, found = ask(site, "train", {"w": loud})
    assert "what training gave does not leave this site: w: norm" in head["error"]
    assert "allowed at most 2" in head["error"]
    assert not found
    quiet = ask(site, "train", {"w": trapped(w)})
    assert "error" not in quiet[0]  # which is why SECURITY.md does not call it a protection


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (lambda w: {"w": w[:-1]}, "message.w: shape"),
        (lambda w: {"w": w.double()}, "torch.float64"),
        (lambda w: {"w": w, "more": torch.zeros(77)}, "message.more: torch.float32, shape (77,)"),
        (lambda w: {"w": w, "many": torch.zeros(17, len(w))}, "message.many"),
        (lambda w: {"w": w, "ids": torch.tensor([3])}, "message.ids: not the numbers of seats"),
        (lambda w: {"w": w, "ids": torch.tensor([0, 1, 2, 0])}, "message.ids"),
        (lambda w: {"w": w, "x": float("nan")}, "message.x: holds NaN"),
    ],
)
def test_what_has_no_shape_of_this_federation_is_refused(made, tmp_path, message, said):
    """Before the method's own code sees it."""
    site = victim(made, tmp_path)
    site._side("fedavg", 0).call = None  # would be an error of another kind
    head, found = ask(site, "train", message(start(site)["w"]))
    assert said in head["error"]
    assert not found
    stacked = {"w": start(site)["w"], "gradients": torch.zeros(3, len(start(site)["w"]))}
    assert "NoneType" in ask(site, "train", stacked)[0]["error"]  # this went through


SENDS = {  # what a method's row of the table begins with -> what it declares
    "nothing": lambda leaves, shared: not leaves,
    "the body": lambda leaves, shared: shared == "body" and "prototypes" not in leaves,
    "the classifier": lambda leaves, shared: shared == "head",
    "the model, or its step": lambda leaves, shared: (
        shared in ("all", "not-norm") and leaves and not {"gradient", "prototypes"} & leaves
    ),
    "model and gradient": lambda leaves, shared: "gradient" in leaves,
    "model, class counts and mean features of each class": lambda leaves, shared: (
        {"classes", "prototypes"} <= leaves
    ),
}


def test_the_table_of_what_a_server_learns_has_every_method():
    text = (Path(__file__).parents[2] / "SECURITY.md").read_text()
    rows = {}
    for what in SENDS:
        (row,) = re.findall(rf"^\| {re.escape(what)} \| (.*?) \|", text, re.MULTILINE)
        rows[what] = set(re.findall(r"`([a-z0-9-]+)`", row))
    simulated = {name for name in registry.NAMES if registry.get(name).course == "pooled"}
    assert set().union(*rows.values()) == set(registry.NAMES) - simulated
    for what, names in rows.items():
        for name in names:
            method = registry.get(name)
            assert SENDS[what](set(method.leaves.values()), method.shared), (name, what)
