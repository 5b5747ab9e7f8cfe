"""A schema for tables that have none: proposed from their names and cells, for people to mend."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from pgfed.data.tables.reading import numbers, pandas, texts
from pgfed.data.tables.schema import Numeric, Schema
from pgfed.errors import UserError

MANY = 50  # categories; a column of texts with more is taken for notes or keys
FEW_CLASSES = 20  # whole numbers with more values than this are no classes
ROUNDING = 1e-9  # of a correlation
EQUAL, TELLS = "equals", "tells"  # what a column is to the target
_TARGETS = r"(target|label|class|outcome|diagnosis|y|fraud|is_fraud|death|died)"
_CLIENTS = r"(site|client|hospital|bank|cent(er|re)|clinic|plant|institution|branch)(_?(id|name))?"
_GROUPS = r"(patient|subject|person|participant|customer|group|case)(_?(id|number|no|nr))?"
_KEYS = r"(.*_)?(id|index|key|uuid|nr)|unnamed.*"
_POSITIVE = ("yes", "true", "1", "positive", "case", "malignant", "sick", "fraud")


@dataclass(frozen=True)
class Column:
    """One column over all files."""

    name: str
    cells: NDArray[Any]  # texts or None
    numbers: NDArray[np.float64] | None  # None where some text is none

    @property
    def given(self) -> NDArray[Any]:
        return self.cells[np.array([cell is not None for cell in self.cells], dtype=np.bool_)]

    @property
    def values(self) -> list[str]:
        """All that occur; numbers in their order."""
        found, first = np.unique(self.given.astype(str), return_index=True)
        if self.numbers is None:
            return [str(one) for one in found]
        return [str(found[i]) for i in np.argsort(self.known[first], kind="stable")]

    @property
    def known(self) -> NDArray[np.float64]:
        """The numbers of the cells that have one."""
        assert self.numbers is not None, "asked of columns of numbers"
        return self.numbers[~np.isnan(self.numbers)]

    @property
    def whole(self) -> bool:
        if self.numbers is None:
            return False
        return bool((self.known == np.round(self.known)).all())

    def is_called(self, pattern: str) -> bool:
        return re.fullmatch(pattern, self.name, re.IGNORECASE) is not None


@dataclass(frozen=True)
class Proposal:
    """A schema, a word on each column, and what its reader should look at."""

    schema: Schema
    about: dict[str, str]
    warnings: list[str]
    numbers: bool  # whether targets are numbers, not classes

    def as_json(self) -> dict[str, Any]:
        kind = {"task_kind": "regression"} if self.numbers else {}
        return {
            "schema": self.schema.plain(),
            "about": self.about,
            "warnings": self.warnings,
            **kind,
        }

    def text(self) -> str:
        """As schema.toml."""
        plain = self.schema.plain()
        columns = {name: plain.pop(name, {}) for name in ("numeric", "categorical")}
        drop = plain.pop("drop", [])
        plain["target"] = plain["target"][0] if len(plain["target"]) == 1 else plain["target"]
        lines = ["# A proposal: look at each line. docs/your-data.md says what the keys mean."]
        lines += [f"# Warning: {warning}" for warning in self.warnings]
        if self.numbers:
            lines.append('# Numbers to predict: task.kind = "regression".')
        lines.append(tomli_w.dumps(plain).rstrip())
        if drop:
            names = [tomli_w.dumps({"name": name}).strip().partition(" = ")[2] for name in drop]
            reasons = [self.about[name] for name in drop]
            told = (f"    {name},  # {why}" for name, why in zip(names, reasons, strict=True))
            lines += ["drop = [", *told, "]"]
        for table, found in columns.items():
            lines += ["", f"[{table}]"]
            for name, value in found.items():
                key, _, written = tomli_w.dumps({name: value}).strip().partition(" = ")
                written = "{}" if value == {} else re.sub(r"\s*\n\s*", " ", written)
                key = tomli_w.dumps({name: 0}).partition(" = ")[0]
                lines.append(f"{key} = {written}  # {self.about[name]}")
        return "\n".join(lines) + "\n"


def propose(tables: Mapping[Path, Any], target: Sequence[str] | None = None) -> Proposal:
    """From one file, or one per site; ``target``: what is to be predicted, if that is known."""
    first = next(iter(tables))
    _check_alike(tables)
    table = pandas().concat(list(tables.values()), ignore_index=True)
    columns = {name: _column(name, table[name]) for name in table.columns}
    chosen = _targets(list(columns), columns, target)
    roles = _roles(columns, chosen)
    warnings: list[str] = []
    drop, numeric, categorical, about = [], {}, {}, {}
    for name, column in columns.items():
        if name in chosen or name in roles.values():
            continue
        about[name] = _word(column)
        reason = _useless(column) or _leak(column, [columns[one] for one in chosen], warnings)
        if reason:
            drop.append(name)
            about[name] = reason
            if "leak" in reason:
                warnings.append(f"{name} {reason}: dropped")
        elif column.numbers is not None:
            numeric[name] = Numeric()
        else:
            categorical[name] = column.values
    if not numeric and not categorical:
        raise UserError(f"{first}: no columns left for inputs beside {', '.join(chosen)}")
    classes = _classes(columns[chosen[0]]) if len(chosen) == 1 else []
    schema = Schema(
        target=chosen,
        classes=classes,
        positive=_positive(classes),
        drop=drop,
        numeric=numeric,
        categorical=categorical,
        **roles,
    )
    return Proposal(schema, about, warnings, all(_is_number(columns[name]) for name in chosen))


def _check_alike(tables: Mapping[Path, Any]) -> None:
    """All files have the same columns, in any order."""
    first, *others = tables
    here = [str(column) for column in tables[first].columns]
    for other in others:
        there = [str(column) for column in tables[other].columns]
        lacks = [column for column in here if column not in there]
        has = [column for column in there if column not in here]
        told = [f"no column {', '.join(map(repr, lacks))}"] if lacks else []
        told += [f"{', '.join(map(repr, has))} beside its columns"] if has else []
        if told:
            raise UserError(
                f"{other}: other columns than {first}: {'; '.join(told)}; allowed: the same in all "
                "files, or a data.schema that names those that all have"
            )


def _column(name: str, cells: Any) -> Column:
    found = texts(cells, [])
    values, wrong = numbers(found)
    # An infinite one is a bad number, not a name.
    names = wrong & np.isnan(values)
    return Column(str(name), found, None if names.any() else values)


def _targets(
    names: Sequence[str], columns: Mapping[str, Column], target: Sequence[str] | None
) -> list[str]:
    if target is not None:
        for name in target:
            if name not in columns:
                raise UserError(f"target: found {name!r}; allowed: {', '.join(names)}")
        return list(target)
    called = [name for name in names if columns[name].is_called(_TARGETS)]
    return [called[-1] if called else names[-1]]


def _roles(columns: Mapping[str, Column], targets: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, column in columns.items():
        values = column.values
        if name in targets or len(column.given) < len(column.cells):
            continue
        if column.is_called("split") and set(values) <= {"train", "validation", "test"}:
            found["split"] = name
        elif column.is_called(_CLIENTS) and 2 <= len(values) <= len(column.cells) // 2:
            found.setdefault("client", name)
        elif column.is_called(_GROUPS) and 2 <= len(values) < len(column.cells):
            found.setdefault("group", name)
    return found


def _useless(column: Column) -> str | None:
    values = column.values
    if len(values) < 2:
        return "has one value"
    alone = len(values) == len(column.given) and (column.numbers is None or column.whole)
    if alone and column.is_called(f"{_KEYS}|{_GROUPS}"):
        return "names each row"
    if column.numbers is None and len(values) > MANY:
        return f"holds {len(values)} different texts"
    return None


def _leak(column: Column, targets: Sequence[Column], warnings: list[str]) -> str | None:
    """A column that equals a target is one; one that tells it by itself may be."""
    for target in targets:
        found = _equal_numbers if _is_number(target) else _equal_classes
        word = found(column, target)
        if word == EQUAL:
            return f"equals the target {target.name} (a leak)"
        if word == TELLS:
            warnings.append(
                f"{column.name} alone tells every {target.name}: known only afterwards?"
            )
    return None


def _is_number(target: Column) -> bool:
    return target.numbers is not None and not _classes(target)


def _equal_numbers(column: Column, target: Column) -> str | None:
    """The same number in this or another unit, or the same order of all rows."""
    if column.numbers is None or target.numbers is None:
        return None
    both = np.isfinite(column.numbers) & np.isfinite(target.numbers)
    a, b = column.numbers[both], target.numbers[both]
    if len(b) <= FEW_CLASSES or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    if 1 - abs(np.corrcoef(a, b)[0, 1]) < ROUNDING:
        return EQUAL
    ranks = [np.unique(values, return_inverse=True)[1] for values in (a, b)]
    same = (ranks[0] == ranks[1]).all() or (ranks[0] == ranks[1].max() - ranks[1]).all()
    return TELLS if same else None


def _equal_classes(column: Column, target: Column) -> str | None:
    """A name for each class, or names or a range of numbers that each belong to one class."""
    both = [
        (i, a, b)
        for i, (a, b) in enumerate(zip(column.cells, target.cells, strict=True))
        if a is not None and b is not None
    ]
    pairs = {(a, b) for _, a, b in both}
    left, right = {a for a, _ in pairs}, {b for _, b in pairs}
    if len(right) < 2 or len(both) <= max(FEW_CLASSES, 2 * len(right)):
        return None  # a few rows are told apart by anything
    if len(pairs) == len(left) == len(right):
        return EQUAL
    if len(pairs) == len(left) <= len(both) // 4:  # names that come again and again
        return TELLS
    if (values := column.numbers) is not None:
        ordered = [b for i, _, b in sorted(both, key=lambda row: float(values[row[0]]))]
        if sum(a != b for a, b in itertools.pairwise(ordered)) == len(right) - 1:
            return TELLS
    return None


def _classes(target: Column) -> list[str]:
    values = target.values
    if target.numbers is None:
        return values if len(values) <= MANY else []
    return values if target.whole and len(values) <= FEW_CLASSES else []


def _positive(classes: Sequence[str]) -> str | None:
    if len(classes) != 2:
        return None
    return next((name for name in classes if name.lower() in _POSITIVE), classes[-1])


def _word(column: Column) -> str:
    """What was seen of a column."""
    absent = len(column.cells) - len(column.given)
    gaps = f", {absent} of {len(column.cells)} missing" if absent else ""
    if column.numbers is not None and len(column.given):
        low, high = np.nanmin(column.numbers), np.nanmax(column.numbers)
        return f"{low:g} to {high:g}{gaps}"
    return f"{len(column.values)} different{gaps}"
