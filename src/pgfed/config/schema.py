"""Tables of an experiment file: strict types, and one line for what is wrong in them."""

from __future__ import annotations

import dataclasses
import difflib
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from pgfed.errors import UserError
from pgfed.methods.settings import hints

T = TypeVar("T")


class Table(BaseModel):
    """A table whose keys are all known and whose values are what they look like."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def check(kind: type[T], content: Mapping[str, Any], at: str = "") -> T:
    """The content as a table, or one line about the first thing wrong in it.

    ``kind`` is a dataclass, whose fields may be tables too, or a `Table`.
    """
    model = model_of(kind)
    try:
        found = model.model_validate(content)
    except ValidationError as error:
        raise _explain(model, error.errors(include_url=False), at) from None
    return found if isinstance(found, kind) else _built(kind, found)


def model_of(kind: type[Any]) -> type[BaseModel]:
    """The pydantic model that reads a dataclass."""
    if issubclass(kind, BaseModel):
        return kind
    if kind not in _models:
        types = hints(kind)
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(kind):
            annotation = types[field.name]
            if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
                inner = model_of(annotation)
                fields[field.name] = inner, Field(default_factory=inner)
            elif field.default_factory is not dataclasses.MISSING:
                fields[field.name] = annotation, Field(default_factory=field.default_factory)
            else:
                fields[field.name] = annotation, field.default
        with warnings.catch_warnings():  # a key may be called as pydantic once called a method
            warnings.filterwarnings("ignore", "Field name .* shadows an attribute", UserWarning)
            _models[kind] = create_model(kind.__name__, __base__=Table, **fields)
    return _models[kind]


_models: dict[type[Any], type[BaseModel]] = {}


def _built(kind: type[T], found: BaseModel) -> T:
    types = hints(kind)
    values = {name: getattr(found, name) for name in type(found).model_fields}
    inner = {name: _built(types[name], v) for name, v in values.items() if isinstance(v, Table)}
    return kind(**{**values, **inner})


def unknown_key(key: str, table: str, keys: Sequence[str], elsewhere: Sequence[str]) -> UserError:
    """A key that does not exist; the nearest spelling, also of keys that live in other tables."""
    near = difflib.get_close_matches(key, keys, n=1, cutoff=0.6)
    if not near:
        near = [other for other in elsewhere if other.rpartition(".")[2] == key][:1]
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    place = f"in [{table}]" if table else "at the top"
    return UserError(f"{_join(table, key)}: unknown key{hint}; allowed {place}: {', '.join(keys)}")


def shown(value: Any) -> str:
    """A value as the experiment file would spell it, shortened."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, int) and value.bit_length() > 64:  # Python will not print a very long one
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, list):
        inner = ["[...]" if isinstance(item, list) else shown(item) for item in value[:20]]
        text = f"[{', '.join(inner)}]"
    else:
        text = repr(value) if isinstance(value, str | int | float) else f"{value}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def allowed(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """In words, what a field of this type may hold."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return allowed(inner, [*metadata, *more])
    if get_origin(annotation) in (Union, types.UnionType):
        options = [option for option in get_args(annotation) if option is not type(None)]
        return " or ".join(allowed(option, metadata) for option in options)
    if get_origin(annotation) is Literal:
        return ", ".join(shown(option) for option in get_args(annotation))
    if annotation is bool:
        return "true or false"
    if annotation is int:
        return f"an integer{_bounds(metadata)}"
    if annotation is float:
        return f"a number{_bounds(metadata)}"
    if annotation is str:
        return "a string"
    if get_origin(annotation) is list:
        least = "at least one" if any(isinstance(m, MinLen) for m in metadata) else "any number"
        return f"a list of {least}, each {allowed(get_args(annotation)[0])}"
    return "a table"


def _bounds(metadata: Sequence[Any]) -> str:
    words = []
    for bound in _flat(metadata):
        if isinstance(bound, Ge):
            words.append(f"from {bound.ge:,}")
        elif isinstance(bound, Gt):
            words.append(f"above {bound.gt:,}")
        elif isinstance(bound, Le):
            words.append(f"up to {bound.le:,}")
        elif isinstance(bound, Lt):
            words.append(f"up to, but not including, {bound.lt:,}")
    return "".join(f" {word}" for word in words)


def _flat(metadata: Sequence[Any]) -> list[Any]:
    """pydantic keeps several bounds given at once inside one `Field`."""
    return [
        bound
        for item in metadata
        for bound in (item.metadata if isinstance(item, FieldInfo) else [item])
    ]


def _explain(model: type[BaseModel], errors: Sequence[Any], at: str) -> UserError:
    # An unknown key first: it is often the misspelling of one that is then missing or wrong.
    error = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    *tables, key = error["loc"]
    if error["type"] == "extra_forbidden":
        table = _join(at, *tables)
        return unknown_key(str(key), table, list(_model(model, tables).model_fields), dotted(model))
    place = _place(model, error["loc"])
    names = [part for part in place if isinstance(part, str)]
    field = _model(model, names[:-1]).model_fields.get(names[-1])
    what = "a table" if field is None else allowed(field.annotation, field.metadata)
    options = _options(field.annotation) if field and isinstance(error["input"], str) else []
    near = difflib.get_close_matches(error["input"], options, n=1, cutoff=0.5) if options else []
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    where = _join(at, *place)
    return UserError(f"{where}: found {shown(error['input'])}{hint}; allowed: {what}")


def _place(model: type[BaseModel], place: Sequence[Any]) -> Sequence[Any]:
    """Of a key that may hold a word or something else, without the kind that was tried."""
    for depth, name in enumerate(place):
        field = _model(model, place[:depth]).model_fields.get(name)
        kinds = () if field is None else get_args(field.annotation)
        if len(kinds) > 1 and any(get_origin(kind) is Literal for kind in kinds):
            return place[: depth + 1]
    return place


def _options(annotation: Any) -> list[str]:
    """The strings that a field may hold, if they can be listed."""
    if get_origin(annotation) is Literal:
        return [option for option in get_args(annotation) if isinstance(option, str)]
    return [option for inner in get_args(annotation) for option in _options(inner)]


def _model(model: type[BaseModel], tables: Sequence[Any]) -> type[BaseModel]:
    for name in tables:
        inner = model.model_fields[name].annotation if name in model.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        model = inner
    return model


def dotted(kind: type[Any]) -> list[str]:
    """All keys, those of inner tables as table.key."""
    keys = []
    for name, field in model_of(kind).model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            keys += [f"{name}.{key}" for key in dotted(inner)]
        else:
            keys.append(name)
    return keys


def _join(*parts: Any) -> str:
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part != "":
            text += f".{part}" if text else str(part)
    return text
