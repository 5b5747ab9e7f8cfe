"""From the columns of a table to the inputs of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgfed.data.tables.schema import Numeric, Schema

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """What the numbers of raw rows mean: the schema's numeric columns, then its categorical ones.

    A category is a place in ``levels``; NaN is a missing value.
    """

    schema: Schema
    levels: tuple[tuple[str, ...], ...]  # all that occur, for each categorical column

    def agreed(self, raw: NDArray[np.float64], train: Ints) -> Columns:
        """With the categories that the schema leaves open: those of the training rows."""
        found = dict(self.schema.categorical)
        first = len(self.schema.numeric)
        for k, (name, levels) in enumerate(zip(found, self.levels, strict=True)):
            if not found[name]:
                column = raw[train, first + k]
                seen = np.unique(column[~np.isnan(column)]).astype(np.int64)
                found[name] = [levels[i] for i in seen]
        return replace(self, schema=self.schema.model_copy(update={"categorical": found}))

    def fitted(self, raw: NDArray[np.float64], train: Ints) -> Schema:
        """The schema with each number that it leaves open taken from these training rows."""
        numeric = {
            name: _fitted(numbers, raw[train, k])
            for k, (name, numbers) in enumerate(self.schema.numeric.items())
        }
        return self.schema.model_copy(update={"numeric": numeric})

    def inputs(self, raw: NDArray[np.float64], schema: Schema) -> NDArray[np.float32]:
        """The rows as a fitted schema has them; an unseen or missing category is all zeros."""
        parts: list[NDArray[Any]] = []
        for k, numbers in enumerate(schema.numeric.values()):
            column = raw[:, k]
            mean, scale, fill = numbers.fitted
            filled = np.where(np.isnan(column), fill, column)
            parts.append(((filled - mean) / scale)[:, None])
        first = len(schema.numeric)
        for k, (categories, levels) in enumerate(
            zip(schema.categorical.values(), self.levels, strict=True)
        ):
            place = {name: i for i, name in enumerate(categories)}
            known = np.array([place.get(name, -1) for name in levels] + [-1], dtype=np.int64)
            column = raw[:, first + k]
            number = known[np.where(np.isnan(column), len(levels), column).astype(np.int64)]
            parts.append(number[:, None] == np.arange(len(categories)))
        return np.concatenate(parts, axis=1).astype(np.float32)

    def unseen(self, raw: NDArray[np.float64], schema: Schema) -> dict[str, int]:
        """How many rows have a category that the schema does not, by column."""
        found = {}
        first = len(schema.numeric)
        for k, (name, levels) in enumerate(zip(schema.categorical, self.levels, strict=True)):
            strange = [i for i, one in enumerate(levels) if one not in schema.categorical[name]]
            if count := int(np.isin(raw[:, first + k], strange).sum()):
                found[name] = count
        return found


def _fitted(numbers: Numeric, column: NDArray[np.float64]) -> Numeric:
    """A column without a single number becomes zeros."""
    known = column[~np.isnan(column)]
    values: dict[str, Any] = {}
    if numbers.mean is None:
        values["mean"] = float(known.mean()) if len(known) else 0.0
        spread = float(known.std()) if len(known) else 0.0
        values["scale"] = spread if spread > 1e-12 * (1 + abs(values["mean"])) else 1.0
    if numbers.fill is None:
        agreed = numbers.mean if numbers.mean is not None else 0.0
        own = numbers.mean is None and len(known) > 0
        values["fill"] = float(np.median(known)) if own else agreed
    return numbers.model_copy(update=values)


@dataclass(frozen=True)
class Prepared:
    """Inputs, and how they were made."""

    x: NDArray[np.float32]
    schema: Schema  # what all clients have in common
    fitted: tuple[Schema, ...]  # of each client
    unseen: dict[str, int]  # rows with a category that the schema does not have, by column


def prepared(columns: Columns, raw: NDArray[np.float64], order: Ints, bounds: Ints) -> Prepared:
    """The inputs in order, each client's with its own fitted schema.

    ``bounds`` as of a `Federation`: fitted is on what each client trains on, and on nothing else.
    """
    train = np.concatenate([order[start:stop] for start, stop in bounds[:, :2].tolist()])
    columns = columns.agreed(raw, train)
    x = np.empty((len(order), columns.schema.width), dtype=np.float32)
    schemas: list[Schema] = []
    for start, trained, _, stop in bounds.tolist():
        schemas.append(columns.fitted(raw, order[start:trained]))
        x[start:stop] = columns.inputs(raw[order[start:stop]], schemas[-1])
    unseen = columns.unseen(raw[order], columns.schema)
    return Prepared(x, columns.schema, tuple(schemas), unseen)
