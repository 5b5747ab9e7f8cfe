"""Settings of methods: dataclass fields that carry their bounds and their meaning.

    mu: Annotated[float, Ge(0), "mu, weight of the other clients' risks"] = 0.1

A bare text is the field's help; bounds are those of `annotated_types`. The experiment file, its
errors, `pgfed methods --show` and the docs all read them here. Nothing in this module needs torch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from pgfed.errors import UserError


@dataclass(frozen=True)
class TrainConfig:
    """Local training; a [method.NAME] may override each key."""

    epochs: Annotated[int, Ge(1), Le(1_000_000), "E, passes over the client's data per round"] = 5
    batch_size: Annotated[
        int, Ge(0), Le(10**9), "B; 0 = the client's whole training set in one batch"
    ] = 10
    lr: Annotated[float, Gt(0), "eta"] = 0.005
    momentum: Annotated[float, Ge(0), Lt(1), "rho"] = 0.9
    momentum_policy: Annotated[
        Literal["paper", "official"], "official: none where the code has none"
    ] = "paper"
    reset_momentum: Annotated[bool, "forget the momentum buffer between participations"] = False


@functools.cache
def hints(cls: Callable[..., Any]) -> dict[str, Any]:
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


BOUNDS: dict[type[Any], tuple[str, Callable[[Any, Any], bool]]] = {
    Ge: (">=", lambda value, bound: value >= bound.ge),
    Gt: (">", lambda value, bound: value > bound.gt),
    Le: ("<=", lambda value, bound: value <= bound.le),
    Lt: ("<", lambda value, bound: value < bound.lt),
}


def check_bounds(settings: Any) -> None:
    """Refuse a dataclass one of whose fields is out of its bounds."""
    types = hints(type(settings))  # type: ignore[arg-type]  # classes are hashable
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        for bound in metadata(types.get(field.name)):
            sign, holds = BOUNDS.get(type(bound), ("", lambda value, bound: True))
            if not holds(value, bound):
                limit = next(iter(dataclasses.asdict(bound).values()))
                raise UserError(f"{field.name}: must be {sign} {limit:g}, found {value:g}")
