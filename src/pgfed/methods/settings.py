"""Settings of methods: dataclass fields that carry their bounds and their meaning.

    mu: Annotated[float, Ge(0), "mu, weight of the other clients' risks"] = 0.1

A bare text is the field's help; bounds are those of `annotated_types`. The experiment file, its
errors, `pgfed methods --show` and the docs all read them here. Nothing in this module needs torch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from pgfed.errors import UserError


@dataclass(frozen=True)
class TrainConfig:
    """Local training; a [method.NAME] may override each key."""

    epochs: Annotated[int, Ge(1), Le(1_000_000), "E, passes over the client's data per round"] = 5
    batch_size: Annotated[
        int,
        Ge(0),
        Le(10**9),
        "B, samples per step; 0 = the client's whole training set in one batch",
    ] = 10
    lr: Annotated[float, Gt(0), "eta, the learning rate of local steps"] = 0.005
    momentum: Annotated[float, Ge(0), Lt(1), "rho, momentum of local steps"] = 0.9
    momentum_policy: Annotated[
        Literal["paper", "official"], "official: no momentum where the authors' code has none"
    ] = "paper"
    reset_momentum: Annotated[bool, "forget the momentum buffer between participations"] = False
    optimizer: Annotated[
        Literal["sgd", "adamw"], "how a step follows the gradient; of adamw momentum is beta_1"
    ] = "sgd"
    weight_decay: Annotated[
        float, Ge(0), "decoupled: each step takes lr times this share off the weights"
    ] = 0.0
    clip: Annotated[float, Ge(0), "bound on the norm of each step's gradient; 0 = none"] = 0.0
    schedule: Annotated[
        Literal["constant", "cosine"], "of lr over the rounds; cosine: from lr towards 0"
    ] = "constant"
    augment: Annotated[
        str, "of training samples, in steps alone: none, flip-crop or package.module:function"
    ] = "none"
    precision: Annotated[
        Literal["float32", "bfloat16"],
        "of the arithmetic that gradients take; bfloat16 is faster where the processor has it "
        "(AVX512_BF16, AMX, GPUs), and slower elsewhere",
    ] = "float32"

    def at(self, round: int, rounds: int) -> TrainConfig:
        """As of a round, counted from 1: with the learning rate that the schedule has come to."""
        if self.schedule == "constant":
            return self
        share = (1 + math.cos(math.pi * (round - 1) / rounds)) / 2
        return dataclasses.replace(self, lr=self.lr * share)


@dataclass(frozen=True)
class PersonalConfig:
    """How a personal model is made of what a method leaves; [method.NAME] may override each key."""

    frame: Annotated[
        Literal["none", "serving", "training"],
        "of the client's own class shares: put on the model that is scored and taken home, or "
        "also while it is trained",
    ] = "none"
    blend: Annotated[
        Annotated[float, Ge(0), Le(1)] | Literal["auto"],
        "share of the own last model against the newest global one; auto: each client chooses",
    ] = 1.0
    refresh: Annotated[
        bool, "after the last round every client trains once more from the final global model"
    ] = False


def hints(cls: type[Any]) -> dict[str, Any]:
    """field -> its type with all that is said about it."""
    try:
        return get_type_hints(cls, include_extras=True)
    except NameError:  # a class defined inside a function, with names of that function
        return {}


def metadata(annotation: Any) -> Iterator[Any]:
    """What is said about a field beside its type, also inside unions."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        yield from more
        yield from metadata(inner)
    else:
        for option in get_args(annotation):
            yield from metadata(option)


def help_of(annotation: Any) -> str:
    """The meaning that stands beside a field."""
    return next((item for item in metadata(annotation) if isinstance(item, str)), "")


def check_bounds(settings: Any, at: str) -> None:
    """Refuse a dataclass one of whose fields is out of its bounds; ``at`` is the fields' table."""
    types = hints(type(settings))
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        bounds = [item for item in metadata(types.get(field.name)) if isinstance(item, BOUNDS)]
        if not all(_holds(value, bound) for bound in bounds):
            raise UserError(f"{at}.{field.name}: must be {_rule(bounds)}, found {value:g}")


BOUNDS = (Ge, Gt, Le, Lt)
Bound = Ge | Gt | Le | Lt


def _holds(value: Any, bound: Bound) -> bool:
    match bound:
        case Ge(limit):
            return bool(value >= limit)
        case Gt(limit):
            return bool(value > limit)
        case Le(limit):
            return bool(value <= limit)
        case Lt(limit):
            return bool(value < limit)


def _rule(bounds: Sequence[Bound]) -> str:
    """In words, what must hold."""
    match bounds:
        case [Ge(low), Le(high)]:
            return f"between {low:g} and {high:g}"
        case [Gt(low), Lt(high)]:
            return f"in ({low:g}, {high:g})"
    signs = {Ge: ">=", Gt: ">", Le: "<=", Lt: "<"}
    limits = [next(iter(dataclasses.asdict(bound).values())) for bound in bounds]
    return " and ".join(
        f"{signs[type(bound)]} {limit:g}" for bound, limit in zip(bounds, limits, strict=True)
    )


def check_pull(method: str, key: str, strength: float, train: TrainConfig) -> None:
    """For methods with a leash: refuse one so strong that steps along it alone run away."""
    limit = 2 * (1 + train.momentum) / train.lr
    if train.optimizer == "sgd" and strength >= limit:
        raise UserError(
            f"method.{method}.{key}: must be < {limit:g}, which is 2 (1 + momentum) / lr (beyond "
            f"it steps along the leash run away), found {strength:g}"
        )


def check_plain(method: str, train: TrainConfig, why: str) -> None:
    """For methods that take steps of their own: refuse what these do not know."""
    plain = TrainConfig()
    for key in ("optimizer", "weight_decay", "clip"):
        if (found := getattr(train, key)) != (allowed := getattr(plain, key)):
            raise UserError(
                f"method.{method}.{key}: found {found!r}; allowed: {allowed!r}, as {why}; set it "
                f"in [method.{method}]"
            )
