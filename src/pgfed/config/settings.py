"""A method's hyper-parameters: the fields of its dataclass, checked and explained."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import create_model

from pgfed.config.schema import Table, allowed, check, unknown_key
from pgfed.errors import UserError
from pgfed.methods.settings import TrainConfig, help_of, hints

if TYPE_CHECKING:
    from pgfed.methods.contract import Algorithm


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One field: its default, what it may hold, and what it means."""

    name: str
    default: Any
    type: Any
    meaning: str

    @property
    def allowed(self) -> str:
        return allowed(self.type)


def parameters(cls: type[Any]) -> list[Parameter]:
    """The fields of a dataclass, without [train], which all methods share."""
    types = hints(cls)
    return [
        Parameter(field.name, field.default, types[field.name], help_of(types[field.name]))
        for field in dataclasses.fields(cls)
        if field.name != "train"
    ]


def make(
    cls: type[Algorithm], table: Mapping[str, Any], train: TrainConfig, at: str
) -> tuple[Algorithm, dict[str, Any]]:
    """The method with the values of its table over those of [train]; also the complete table."""
    own = {p.name: p for p in parameters(cls)}
    train_keys = [field.name for field in dataclasses.fields(TrainConfig)]
    for key in table:
        if key not in own and key not in train_keys:
            raise unknown_key(key, at, [*own, *train_keys], [])
    fields: dict[str, Any] = {p.name: (p.type, p.default) for p in own.values()}
    model = create_model(cls.__name__, __base__=Table, **fields)
    values = check(model, {k: v for k, v in table.items() if k in own}, at).model_dump()
    changed = {k: v for k, v in table.items() if k not in own}
    trained = check(TrainConfig, {**dataclasses.asdict(train), **changed}, at)
    try:
        method = cls(train=trained, **values)
    except UserError as error:  # of a variant the variant's own key is at fault
        raise UserError(str(error).replace(f"method.{cls.name}", at, 1)) from None
    except ValueError as error:  # a user's own method need not know of UserError
        raise UserError(f"{at}: {error}") from None
    return method, {**values, **changed}
