"""A method's hyper-parameters: the fields of its dataclass, checked and explained."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import io
import textwrap
import tokenize
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import create_model

from pgfed.config.schema import Table, allowed, check, unknown_key
from pgfed.errors import UserError

if TYPE_CHECKING:
    from pgfed.methods.contract import Algorithm


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One field: its default, what it may hold, and the comment that stands beside it."""

    name: str
    default: Any
    type: Any
    meaning: str

    @property
    def allowed(self) -> str:
        return allowed(self.type)


def parameters(cls: type[Any]) -> list[Parameter]:
    """The fields of a dataclass, without [train], which all methods share."""
    types = get_type_hints(cls)
    comments = _comments(cls)  # type: ignore[arg-type]  # classes are hashable
    return [
        Parameter(field.name, field.default, types[field.name], comments.get(field.name, ""))
        for field in dataclasses.fields(cls)
        if field.name != "train"
    ]


def make(
    cls: type[Algorithm], table: Mapping[str, Any], train: Table, at: str
) -> tuple[Algorithm, dict[str, Any]]:
    """The method with the values of its table over those of [train]; also the complete table."""
    from pgfed.methods.settings import TrainConfig

    own = {p.name: p for p in parameters(cls)}
    train_keys = list(type(train).model_fields)
    for key in table:
        if key not in own and key not in train_keys:
            raise unknown_key(key, at, [*own, *train_keys], [])
    fields: dict[str, Any] = {p.name: (p.type, p.default) for p in own.values()}
    model = create_model(cls.__name__, __base__=Table, **fields)
    values = check(model, {k: v for k, v in table.items() if k in own}, at).model_dump()
    changed = {k: v for k, v in table.items() if k not in own}
    trained = check(type(train), {**train.model_dump(), **changed}, at).model_dump()
    try:
        method = cls(train=TrainConfig(**trained), **values)
    except ValueError as error:  # a user's own method need not know of UserError
        raise UserError(f"{at}: {error}") from None
    return method, {**values, **changed}


@functools.cache
def _comments(cls: type[Any]) -> dict[str, str]:
    """field -> the comment beside it, else the one above it, in the source of the class."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # defined in an interactive session
            continue
        by_line = {
            token.start[0]: token.string.lstrip("# ")
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        alone = {
            number
            for number, line in enumerate(source.splitlines(), start=1)
            if line.lstrip().startswith("#")
        }
        body = ast.parse(source).body[0]
        assert isinstance(body, ast.ClassDef)
        for node in body.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                texts = [by_line[line] for line in lines if line in by_line]
                if not texts:
                    start = node.lineno
                    while start - 1 in alone:
                        start -= 1
                    texts = [by_line[line] for line in range(start, node.lineno)]
                if texts:
                    found[node.target.id] = " ".join(texts)
    return found
