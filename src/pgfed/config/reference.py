"""Every key of an experiment file in words: `pgfed settings`, its page, the comments in files.

All of it is read from `config.tables` and from the methods' own fields; nothing is said twice. The
keys of the tables are known without torch.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import tomli_w

from pgfed.config.schema import allowed
from pgfed.config.tables import BASE, Experiment
from pgfed.errors import UserError, unknown
from pgfed.methods import registry as algorithms
from pgfed.methods.settings import PersonalConfig, TrainConfig, help_of, hints

NO_DEFAULT = "–"
METHOD = "method"
# Keys whose names are the user's to choose.
OPEN = {
    f"{METHOD}.NAME.{BASE}": (
        "a method's name",
        "makes NAME a variant of that method: what else the table holds is what differs",
    ),
    "sweep.KEY": ("a list of values", "what `pgfed sweep` tries for a key; nothing else reads it"),
}


@dataclasses.dataclass(frozen=True)
class Key:
    """One key: what it means, its default as the file would spell it, what it may hold."""

    name: str  # with its tables, as --set takes it
    default: str
    meaning: str
    allowed: str

    @property
    def table(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def leaf(self) -> str:
        return self.name.rpartition(".")[2]


@cache
def table_keys() -> Sequence[Key]:
    """All keys but those of single methods, in the order of the tables."""
    found = list(_keys(Experiment, ""))
    open_keys = [Key(name, NO_DEFAULT, what, how) for name, (how, what) in OPEN.items()]
    return [key for key in found if "." not in key.name] + [
        key for key in [*found, *open_keys] if "." in key.name
    ]


def method_keys(name: str) -> list[Key]:
    """The keys of [method.NAME] that only this method has; loads the method."""
    at = f"{METHOD}.{algorithms.folder(name)}"
    return [key for key in _keys(algorithms.get(name), at) if key.leaf != "train"]


def find(asked: str) -> list[Key]:
    """The keys that are meant: one, those of a table, or all with this last name."""
    table, _, method = asked.partition(".")
    if table == METHOD and method:
        return _of_method(asked, method)
    if table == METHOD:
        return [key for name in algorithms.NAMES for key in method_keys(name)]
    known = table_keys()
    for fits in (
        [key for key in known if key.name == asked],
        [key for key in known if key.table == asked],
        [key for key in known if key.leaf == asked],
    ):
        if fits:
            return fits
    by_leaf = {key.leaf: key.name for key in reversed(known)}
    names = [*(key.name for key in known), *by_leaf, *(key.table for key in known if key.table)]
    near = difflib.get_close_matches(asked, names, n=1, cutoff=0.5)
    hint = f" (did you mean {by_leaf.get(near[0], near[0])!r}?)" if near else ""
    raise UserError(
        f"settings: unknown {asked!r}{hint}; allowed: a key, a table, or method.NAME, as `pgfed "
        "settings` lists them"
    )


def _of_method(asked: str, method: str) -> list[Key]:
    """Of [method.NAME]: its own keys, and those of [train] and [personal], which it overrides."""
    module, colon, rest = method.rpartition(":")  # of one of a user's own
    first, _, leaf = rest.partition(".")
    name = f"{module}{colon}{first}"
    if name not in algorithms.NAMES and not colon:
        raise unknown("method", name, [*algorithms.NAMES, "package.module:Class"])
    at = f"{METHOD}.{algorithms.folder(name)}"
    found = [*method_keys(name), *_overridden(at)]
    if not leaf:
        return found
    fits = [key for key in found if key.name == f"{at}.{leaf}"]
    if not fits:
        names = [key.name.removeprefix(f"{at}.") for key in found]
        raise unknown(asked.removesuffix(f".{leaf}"), leaf, names)
    return fits


@cache
def _overridden(at: str) -> Sequence[Key]:
    """What every [method.NAME] may say for this method alone."""
    return [*_keys(TrainConfig, at), *_keys(PersonalConfig, f"{at}.personal")]


def _keys(cls: type[Any], at: str) -> Iterator[Key]:
    types = hints(cls)
    for field in dataclasses.fields(cls):
        kind, name = types[field.name], f"{at}.{field.name}" if at else field.name
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            if cls is Experiment:
                yield from _keys(kind, name)
        elif not (cls is Experiment and field.name in (METHOD, "sweep")):
            yield Key(name, spelt(_default(field)), help_of(kind), allowed(kind))


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def spelt(value: Any) -> str:
    """A value as the file spells it."""
    if value is None:
        return NO_DEFAULT
    text = tomli_w.dumps({"x": value}).removeprefix("x = ").strip()
    return re.sub(r"\s*\n\s*", " ", text).replace("[ ", "[").replace(", ]", "]")


# -- comments in a file that is written --------------------------------------------------------


def commented(document: Mapping[str, Any], methods: Mapping[str, type[Any]]) -> str:
    """The document as TOML, each key with its meaning; ``methods``: by the names of folders."""
    meanings = {key.name: key.meaning for key in table_keys()}
    for folder, cls in methods.items():
        at = f"{METHOD}.{folder}"
        meanings |= {key.name: key.meaning for key in [*_overridden(at), *_keys(cls, at)]}
    return "\n".join(_with_comments(tomli_w.dumps(document).splitlines(), meanings)) + "\n"


def _with_comments(lines: Iterable[str], meanings: Mapping[str, str]) -> Iterator[str]:
    table = ""
    for line in lines:
        if header := re.fullmatch(r"\[(.+)\]", line):
            table = header[1].replace('"', "")
        # A value of several lines is a list: its comment stands behind the bracket.
        name = re.match(r"([A-Za-z0-9_-]+) = ", line)
        meaning = meanings.get(f"{table}.{name[1]}" if table else name[1]) if name else None
        yield f"{line}  # {meaning}" if meaning else line
