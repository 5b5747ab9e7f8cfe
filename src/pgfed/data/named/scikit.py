"""Tables that come with scikit-learn, divided among sites that differ: no download."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgfed.data.dataset import Dataset, Samples
from pgfed.data.tables.preparation import Columns
from pgfed.data.tables.schema import Numeric, Schema

CLINICS = ("east", "north", "south", "west")
AGES = ("under-40", "40-to-49", "50-to-59", "60-and-older")


def breast_cancer() -> Dataset:
    """569 tumours; a clinic has those of one quarter of the textures: its own microscope's."""
    bunch = importlib.import_module("sklearn.datasets").load_breast_cancer()
    names = [str(name) for name in bunch.feature_names]
    texture = bunch.data[:, names.index("mean texture")]
    quarter = np.searchsorted(np.quantile(texture, [0.25, 0.5, 0.75]), texture, side="right")
    # scikit-learn's order has malignant first; sorted names end with what is looked for.
    return _table(
        "breast-cancer",
        bunch.data,
        1 - bunch.target,
        np.array(CLINICS)[quarter],
        Schema(
            target=["diagnosis"],
            classes=["benign", "malignant"],
            positive="malignant",
            numeric={name: Numeric() for name in names},
        ),
    )


def diabetes() -> Dataset:
    """442 patients; what is predicted is the progression in a year; a practice per age."""
    bunch = importlib.import_module("sklearn.datasets").load_diabetes(scaled=False)
    names = [str(name) for name in bunch.feature_names]
    practice = np.searchsorted([40, 50, 60], bunch.data[:, names.index("age")], side="right")
    return _table(
        "diabetes",
        bunch.data,
        bunch.target,
        np.array(AGES)[practice],
        Schema(
            target=["progression"],
            target_mean=[150.0],
            target_scale=[75.0],
            numeric={name: Numeric() for name in names},
        ),
    )


def _table(
    name: str, x: NDArray[Any], y: NDArray[Any], client: NDArray[np.str_], schema: Schema
) -> Dataset:
    samples = Samples(
        x=np.asarray(x, dtype=np.float64),
        y=y,
        class_names=schema.classes or schema.target,
        client=client,
        columns=Columns(schema, ()),
    )
    return Dataset.of(name, samples, "classes" if schema.classes else "values")
