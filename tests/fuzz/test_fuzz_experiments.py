"""Experiment files: read, checked against the methods, and written again, or refused in a line."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from hypothesis import strategies as st

from fuzz.driving import attempt, drive, explore, share
from fuzz.mutation import mutate
from pgfed.config.experiment import from_dict, load, make_methods
from pgfed.config.schema import dotted
from pgfed.config.tables import Experiment
from pgfed.data.dataset import Dataset
from pgfed.engine.setup import divide
from pgfed.methods.registry import METHODS

FILES = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))
KEYS = dotted(Experiment)

numbers = st.one_of(
    st.sampled_from([0, -1, 1, 2**31, 2**63, 10**12, -(10**20), int("7" * 4_000)]),
    st.sampled_from([0.0, -0.0, 0.5, 1.0, 1e-320, 1e308, float("nan"), float("inf")]),
    st.integers(),
    st.floats(),
)
texts = st.one_of(
    st.sampled_from(
        ["", "\n", "a\nb", "x" * 3_000, "../..", "a.b:c", "pgfed:Nothing", "\x00\x1b[2J"]
    ),
    st.sampled_from([*METHODS, "process", "given", "iid", "krum", "sign-flip", "2GiB"]),
    st.text(max_size=20),
)
values = st.recursive(
    st.one_of(numbers, texts, st.booleans(), st.dates()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=6,
)
tables = st.dictionaries(
    st.sampled_from(KEYS) | texts | st.sampled_from([f"method.{name}.mu" for name in METHODS]),
    values,
    max_size=5,
)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in flat.items():
        table = out
        *above, leaf = key.split(".")
        for name in above:
            inner = table.setdefault(name, {})
            table = inner if isinstance(inner, dict) else table
        table[leaf] = value
    return out


def read_and_write_again(path: Path, overrides: list[str]) -> Experiment:
    """All that `pgfed check` does without the data: what it accepts must repeat itself."""
    experiment = load(path, overrides)
    _, complete = make_methods(experiment)
    text = tomli_w.dumps(complete.document())
    again = make_methods(from_dict(tomllib.loads(text)))[1]
    assert again.document() == complete.document()
    return complete


@share("experiment", 0.4)
def test_damaged_files(tmp_path: Path, cases: int):
    path = tmp_path / "experiment.toml"
    seeds = [file.read_bytes() for file in FILES]
    seeds.append(tomli_w.dumps(make_methods(load(None))[1].document()).encode())

    def one(rng: random.Random) -> str:
        path.write_bytes(mutate(rng.choice(seeds), rng))
        _, refusal = attempt(lambda: read_and_write_again(path, []))
        return "accepted" if refusal is None else "refused"

    assert drive("experiment files", cases, one)["accepted"]


@share("experiment", 0.3)
def test_absurd_values(tmp_path: Path, cases: int):
    path = tmp_path / "experiment.toml"

    def one(flat: dict[str, Any]) -> None:
        try:
            path.write_text(tomli_w.dumps(nested(flat)), encoding="utf-8")
        except (ValueError, UnicodeEncodeError):  # what TOML cannot hold
            return
        attempt(lambda: read_and_write_again(path, []))

    explore(cases, tables, one)


@share("experiment", 0.15)
def test_absurd_options(tmp_path: Path, cases: int):
    path = tmp_path / "experiment.toml"
    path.write_text("rounds = 3\n")
    keys = st.sampled_from([*KEYS, "", ".", "a..b", "method.pgfed.mu", "rounds.x", "data.\n"])
    words = st.sampled_from(
        ["1e999", "nan", "9" * 5_000, "[" * 5_000, "'", "x\n[a]", "0x" + "f" * 5_000]
    )
    option = st.tuples(keys, texts | words | numbers.map(lambda n: f"{n!r}"[:4_000]))

    def one(options: list[tuple[str, str]]) -> None:
        attempt(lambda: read_and_write_again(path, [f"{key}={text}" for key, text in options]))

    explore(cases, st.lists(option, min_size=1, max_size=3), one)


@share("experiment", 0.15)
def test_absurd_divisions(cases: int):
    """[data] says who holds what: whatever it asks for is done in bounded time, or refused."""
    rng = np.random.default_rng(0)
    dataset = Dataset.from_arrays(
        "small",
        rng.normal(size=(200, 3)),
        np.arange(200) % 5,
        domain=np.array(["a", "b"])[np.arange(200) % 2],
        client=np.arange(200) % 7,
    )
    choices = {
        "partition": ["dirichlet", "dirichlet-plain", "classes", "iid", "domain", "given"],
        "clients": [1, 2, 5, 7, 199, 200, 201, 10**7],
        "alpha": [5e-324, 1e-9, 0.3, 1e9, 1e300, 1.7e308],
        "classes_per_client": [1, 2, 5, 6, 10**6],
        "test_share": [0.0, 1e-300, 0.5, 1 - 1e-16],
        "validation_share": [0.0, 1e-300, 0.5, 1 - 1e-16],
        "min_samples": [0, 1, 40, 10**9],
        "new_clients": [0.0, 1e-300, 0.5, 1 - 1e-16],
        "seed": [0, 2**32 - 1],
    }

    def one(rng: random.Random) -> str:
        data = {key: rng.choice(options) for key, options in choices.items() if rng.random() < 0.7}
        experiment = from_dict({"data": data})
        found, _ = attempt(lambda: divide(dataset, experiment.data))
        if found is None:
            return "refused"
        federation, resolved = found
        assert (federation.n_train >= 1).all()
        assert federation.bounds[-1, 3] == len(federation.y) <= 200
        assert len(federation) == resolved.first_new(resolved.clients or 0)
        return "accepted"

    assert drive("divisions", cases, one)["accepted"]
