"""How a client's personal model is made of what a method leaves: its frame and its blend.

The engine's business, once for all methods ([personal] of an experiment). What it sends beside a
method's own messages has keys of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgfed.config.tables import Experiment
from pgfed.data.federation import Shard
from pgfed.errors import NOTES, UserError
from pgfed.methods.contract import Algorithm
from pgfed.methods.randomness import Rng
from pgfed.methods.values import Kind, Message, State, Update
from pgfed.model import frames
from pgfed.model.task import Task

COUNTS = "personal.counts"  # in a message: asks for them; in an update: samples of each class
SHARES = "personal.shares"  # of the federation's classes, which the global model was trained on
GLOBAL = "personal.global"  # the newest global model, for blends
Counts = Callable[[], Tensor]  # of a client's classes, asked for where they are needed
# The own model's share where a client is to choose and has nothing to choose by: no rule by its age
# or by the client's samples was better on all that was tried (docs/beyond.md).
RULE = 0.5
STEPS = 11  # shares of the own model that are tried where a client chooses: 0, 0.1, ..., 1


def blends(algorithm: Algorithm) -> bool:
    """Whether the newest global model is mixed in."""
    return algorithm.personal.blend != 1


def serves(algorithm: Algorithm) -> bool:
    """Whether a global model is corrected from the federation's class shares to the client's."""
    made_of_global = algorithm.personal_from == "global" or blends(algorithm)
    return algorithm.personal.frame == "serving" and made_of_global


def leaves(algorithm: Algorithm) -> dict[str, Kind]:
    """What leaves a client beside the method's own update, in its first round."""
    return {COUNTS: "classes"} if serves(algorithm) else {}


def fit(algorithm: Algorithm, task: Task) -> tuple[Algorithm, str | None]:
    """The method without a frame that is its own default and that nothing here can have, and why
    there can be none; a frame that was asked for is refused."""
    if algorithm.personal.frame == "none":
        return algorithm, None
    try:
        frames.check(task, algorithm.shared, "personal.frame")
    except UserError as error:
        if algorithm.usual().frame != algorithm.personal.frame:
            raise
        plain = replace(algorithm.personal, frame="none")
        return replace(algorithm, personal=plain), str(error)
    return algorithm, None


def fitted(
    methods: Mapping[str, Algorithm], experiment: Experiment, task: Task
) -> tuple[dict[str, Algorithm], Experiment]:
    """The methods as they fit the task, and the experiment that names their settings."""
    found, tables = dict(methods), dict(experiment.method)
    for folder, algorithm in methods.items():
        found[folder], reason = fit(algorithm, task)
        if reason is not None:
            tables[folder] = {**tables[folder], "personal": asdict(found[folder].personal)}
            NOTES.info(f"{folder}: runs without a frame, its blend alone ({reason})")
    return found, replace(experiment, method=tables)


class Told:
    """The clients' class counts, as far as they have told: each is asked once."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._asks = serves(algorithm)
        self._counts: dict[int, Tensor] = {}

    def asked(self, messages: dict[int, Message]) -> dict[int, Message]:
        """The messages, with the question for those who have not told yet."""
        if not self._asks:
            return messages
        return {i: m if i in self._counts else {**m, COUNTS: 1} for i, m in messages.items()}

    def take(self, client: int, update: Update) -> Update:
        """The update without the counts, which are noted."""
        if COUNTS not in update:
            return update
        self._counts[client] = update[COUNTS].cpu()
        return {k: v for k, v in update.items() if k != COUNTS}

    def shares(self) -> Tensor | None:
        """Of the classes, over all who have told."""
        if not self._counts:
            return None
        total = torch.stack([self._counts[i] for i in sorted(self._counts)]).double().sum(0)
        return frames.shares(total).float()

    def numbers(self) -> list[float] | None:
        """The shares for a manifest."""
        shares = self.shares()
        return None if shares is None else [round(float(share), 9) for share in shares]

    def snapshot(self) -> State:
        known = sorted(self._counts)
        if not known:
            return {}
        return {
            "told.ids": torch.from_numpy(np.array(known, dtype=np.int64)),
            "told.counts": torch.stack([self._counts[i] for i in known]),
        }

    def restore(self, cut: Mapping[str, Any]) -> None:
        ids = cut["told.ids"].tolist() if "told.ids" in cut else []
        self._counts = {i: cut["told.counts"][k].clone() for k, i in enumerate(ids)}


def declared(message: Message, algorithm: Algorithm) -> dict[str, Kind]:
    """What an update must hold in answer to this message; a server that asks for more in vain."""
    return {**algorithm.leaves, **(leaves(algorithm) if COUNTS in message else {})}


def refusal(update: Update) -> str | None:
    """Why counts, which have the form of counts, must not be used."""
    if COUNTS in update and not bool((update[COUNTS] >= 0).all()):
        return f"{COUNTS}: less than 0 samples of a class"
    return None


def public(algorithm: Algorithm, task: Task, server: State, told: Told) -> Message:
    """What clients need of the server to make their personal models."""
    found = algorithm.public(server)
    if blends(algorithm):
        found = {**found, GLOBAL: algorithm.global_model(task, server, {})}
    shares = told.shares() if serves(algorithm) else None
    return found if shares is None else {**found, SHARES: shares}


# -- at the client -----------------------------------------------------------------------------


def covered(algorithm: Algorithm) -> bool:
    """Whether the personal model follows from messages and from what privacy charges alone: not
    where it is trained once more at home, or chosen by samples there."""
    own = algorithm.personal
    return algorithm.covered and not own.refresh and own.blend != "auto"


def counted(algorithm: Algorithm) -> bool:
    """Whether the clients' class counts are used, in training or for what is sent."""
    return algorithm.personal.frame == "training" or serves(algorithm)


def training_offset(algorithm: Algorithm, counts: Counts) -> Tensor | None:
    """What the outputs get while a client with these class counts trains."""
    if algorithm.personal.frame != "training":
        return None
    return frames.own_frame(counts())


def unframed(algorithm: Algorithm, task: Task, own: Tensor, counts: Counts) -> Tensor:
    """A model to begin with that is to have these outputs in the client's frame."""
    offset = training_offset(algorithm, counts)
    return own if offset is None else task.folded(own, -offset)


def serving_offset(counts: Counts, message: Message) -> Tensor | None:
    """What the outputs of a global model get, where the federation's shares are known."""
    if SHARES not in message:
        return None
    return frames.corrected(counts(), message[SHARES])


def personal_model(
    algorithm: Algorithm,
    task: Task,
    view: Callable[[Tensor | None], Task],
    state: State,
    message: Message,
    data: Shard,
    rng: Rng,
    *,
    counts: Counts,
    validation: Shard,
    untouched: bool,
) -> Tensor:
    """The model that is scored and taken home, with its frame folded in.

    ``view``: the task for the client's steps, with an offset of its outputs. ``counts``: of its
    classes, noisy under privacy. ``untouched``: the client has never taken part.
    """
    training = training_offset(algorithm, counts)
    serving = serving_offset(counts, message)
    own = {k: v for k, v in message.items() if k not in (GLOBAL, SHARES)}
    if not blends(algorithm):
        offset = serving if training is None else training
        theta = algorithm.personal_model(view(offset), state, own, data, rng)
        return task.folded(theta, offset)
    newest = task.folded(message[GLOBAL], serving if training is None else training)
    if untouched:  # what it has of its own is the start that all had
        return newest
    theta = algorithm.personal_model(view(training), state, own, data, rng)
    theta = task.folded(theta, training)
    share = algorithm.personal.blend
    if share == "auto":
        share = chosen(view(None), newest, theta, validation)
    return torch.lerp(newest, theta, float(share))


def chosen(task: Task, newest: Tensor, own: Tensor, validation: Shard) -> float:
    """The share of the own model with the least loss on the client's validation data; a fixed one
    where it has none."""
    if not len(validation):
        return RULE
    tried = [k / (STEPS - 1) for k in range(STEPS)]
    losses = [task.score(torch.lerp(newest, own, share), validation).loss for share in tried]
    return tried[int(np.argmin(losses))]
