"""A method's hyper-parameters: the fields of its dataclass, checked and explained."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import create_model

from pgfed.config.schema import Table, allowed, check, shown, unknown_key
from pgfed.errors import UserError
from pgfed.methods.settings import PersonalConfig, TrainConfig, help_of, hints

if TYPE_CHECKING:
    from pgfed.methods.contract import Algorithm


PERSONAL = "personal"  # the table inside [method.NAME]


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
    """The fields of a dataclass, without [train] and [personal], which all methods share."""
    types = hints(cls)
    return [
        Parameter(field.name, field.default, types[field.name], help_of(types[field.name]))
        for field in dataclasses.fields(cls)
        if field.name not in ("train", PERSONAL)
    ]


def make(
    cls: type[Algorithm], table: Mapping[str, Any], train: TrainConfig, at: str
) -> tuple[Algorithm, dict[str, Any]]:
    """The method with the values of its table over those of [train]; also the complete table."""
    own = {p.name: p for p in parameters(cls)}
    train_keys = [field.name for field in dataclasses.fields(TrainConfig)]
    personal = table.get(PERSONAL, {})
    table = {k: v for k, v in table.items() if k != PERSONAL}
    for key in table:
        if key not in own and key not in train_keys:
            raise unknown_key(key, at, [*own, *train_keys, PERSONAL], [])
    fields: dict[str, Any] = {p.name: (p.type, p.default) for p in own.values()}
    model = create_model(cls.__name__, __base__=Table, **fields)
    values = check(model, {k: v for k, v in table.items() if k in own}, at).model_dump()
    changed = {k: v for k, v in table.items() if k not in own}
    trained = check(TrainConfig, {**dataclasses.asdict(train), **changed}, at)
    try:
        method = cls(train=trained, **values)
        method = with_personal(method, personal, f"{at}.{PERSONAL}")
    except UserError as error:  # of a variant the variant's own key is at fault
        raise UserError(str(error).replace(f"method.{cls.name}", at, 1)) from None
    except ValueError as error:  # a user's own method need not know of UserError
        raise UserError(f"{at}: {error}") from None
    return method, {**values, **changed}


# -- [personal] --------------------------------------------------------------------------------


def with_personal(method: Algorithm, table: Any, at: str) -> Algorithm:
    """The method with what its own table says of its personal models, if that makes sense."""
    if not isinstance(table, Mapping):
        raise UserError(f"{at}: found {shown(table)}; allowed: a table, as {at}.frame = 'training'")
    found = check(PersonalConfig, {**dataclasses.asdict(method.usual()), **table}, at)
    for key, reason in senseless(method, found).items():
        value = getattr(found, key)
        raise UserError(
            f"{at}.{key}: found {shown(value)}; allowed: {shown(getattr(PLAIN, key))}, as {reason}"
        )
    return dataclasses.replace(method, personal=found)


def with_general(
    method: Algorithm, general: PersonalConfig, said: Collection[str]
) -> tuple[Algorithm, dict[str, str]]:
    """The method with [personal], but for the keys that its own table ``said``, those that are part
    of the method, and those that make no sense with it; which these last are, and why."""
    usual = dataclasses.asdict(method.usual())
    own = {*said, *(key for key, value in usual.items() if value != getattr(PLAIN, key))}
    asked = dataclasses.replace(general, **{key: getattr(method.personal, key) for key in own})
    skipped = senseless(method, asked)
    plain = {key: getattr(PLAIN, key) for key in skipped}
    return dataclasses.replace(method, personal=dataclasses.replace(asked, **plain)), skipped


PLAIN = PersonalConfig()


def senseless(method: Algorithm, personal: PersonalConfig) -> dict[str, str]:
    """The keys of [personal] that make no sense with this method, and why."""
    found = {}
    trial, own = method.role == "method", method.personal_from == "own"
    if personal.frame != "none":
        if not trial or not method.frames:
            found["frame"] = "it keeps no global classifier that a frame could be put on"
        elif method.shared == "body":
            found["frame"] = "its classifier is each client's own"
        elif personal.frame == "serving" and method.personal_from == "both":
            found["frame"] = "its personal model is partly the client's own; 'training' does"
    if personal.blend != 1 and not (trial and own and method.frames and method.shared == "all"):
        found["blend"] = "it has no own model apart from a global one"
    if personal.refresh:
        if method.course != "rounds":
            found["refresh"] = "it is trained to the end"
        elif method.personal_from == "global":
            found["refresh"] = "its personal model is made of the newest global one"
    return found
