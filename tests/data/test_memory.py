"""One data set per site, passed from Python; and data that stays in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

import small_runs
from pgfed.data.federation import Federation
from pgfed.errors import UserError

SMALL: dict[str, Any] = {"methods": ["fedavg"], "rounds": 1, "epochs": 1, "backend": "serial"}


def in_a_file(federation: Federation) -> bool:
    """Does the kernel know a file behind the samples?"""
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, _, _, _, inode, *_ = line.split()
        first, last = (int(part, 16) for part in where.split("-"))
        if first <= federation.x.data_ptr() < last:
            return inode != "0"
    raise AssertionError("no such memory")


def arrays(n: int = 30, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 4)).astype(np.float32), np.arange(n) % 3


def sites(make: Any) -> dict[str, Any]:
    return {name: make(*arrays(seed=k)) for k, name in enumerate(("north", "south"))}


@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: (x, y),
        lambda x, y: list(zip(x, y, strict=True)),
        lambda x, y: TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
        lambda x, y: [(list(map(float, row)), int(label)) for row, label in zip(x, y, strict=True)],
    ],
    ids=["arrays", "pairs", "torch", "plain numbers"],
)
def test_one_data_set_per_site(make: Any):
    result = small_runs.run(datasets=sites(make), **SMALL)
    x, y = map(np.concatenate, zip(*sites(lambda *a: a).values(), strict=True))
    expected = small_runs.run((x, y, np.repeat(["north", "south"], 30)), **SMALL)
    assert [row["label"] for row in result.federation.table()] == ["north", "south"]
    assert result.federation.fingerprint == expected.federation.fingerprint
    assert result.summary[0]["final_score"] == expected.summary[0]["final_score"]


def test_sites_may_hold_names_in_arrays_and_in_pairs():
    x, numbers = arrays()
    y = np.array(["low", "middle", "high"])[numbers]
    made = {"north": (x, y), "south": list(zip(x, y, strict=True))}
    result = small_runs.run(datasets=made, **SMALL)
    assert result.federation.class_names == ("high", "low", "middle")


def test_a_torch_data_set_is_copied_to_a_file():
    made = sites(lambda x, y: TensorDataset(torch.from_numpy(x), torch.from_numpy(y)))
    assert in_a_file(small_runs.run(datasets=made, **SMALL).federation)


def frame(seed: int) -> pd.DataFrame:
    x, y = arrays(seed=seed)
    table = pd.DataFrame(x, columns=list("abcd"))
    table["kind"] = np.where(x[:, 0] > 0, "up", "down")
    table["sick"] = np.array(["no", "yes", "maybe"])[y]
    return table


def test_data_frames_with_a_target_or_a_schema(tmp_path: Path):
    frames = {"north": frame(0), "south": frame(1)}
    by_target = small_runs.run(datasets=frames, target="sick", **SMALL)
    schema = {"target": "sick", "numeric": {k: {} for k in "abcd"}, "categorical": {"kind": []}}
    by_schema = small_runs.run(datasets=frames, schema=schema, **SMALL)
    assert by_target.federation.input_shape == (6,)
    assert by_target.federation.fingerprint == by_schema.federation.fingerprint
    whole = pd.concat([table.assign(site=name) for name, table in frames.items()])
    one = small_runs.run(whole, schema={**schema, "client": "site"}, **SMALL)
    assert one.federation.fingerprint == by_schema.federation.fingerprint


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"datasets": {}}, "found none"),
        ({"datasets": {"a": 3}}, "found int; allowed: a DataFrame"),
        ({"datasets": {"a": []}}, "a: is empty"),
        ({"datasets": {"a": arrays(), "b": arrays(0)}}, "'b' holds no samples"),
        (
            {"datasets": {"a": frame(0), "b": frame(1)[:0]}, "target": "sick"},
            "'b' holds no samples",
        ),
        ({"datasets": {"a": [1, 2]}}, "sample 0 is no pair"),
        ({"datasets": {"a": [("x", 1)]}}, "sample 0 has an x of type str"),
        ({"datasets": {"a": [([1.0], 1), ([1.0, 2.0], 1)]}}, "sample 1 has shapes (2,)"),
        ({"datasets": {"a": arrays(), "b": frame(0)}}, "'b' is another kind of data"),
        ({"datasets": {"a": arrays(), "b": (np.zeros((3, 2)), np.zeros(3))}}, "sites differ"),
        ({"datasets": {"a": arrays()}, "target": "y"}, "allowed with DataFrames"),
        ({"datasets": {"a": arrays()}, "data": "digits"}, "found both"),
        ({"data": "digits", "target": "y"}, "target: allowed with DataFrames"),
        ({"data": frame(0), "target": "ill"}, "target: found 'ill'; allowed: a, b"),
    ],
)
def test_what_is_wrong_is_one_line(given: dict[str, Any], words: str):
    with pytest.raises(UserError) as error:
        small_runs.run(**given, **SMALL)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("dtype", "shape"), [("u1", (3, 5, 4)), ("f4", (6,)), ("f8", (6,)), ("i4", (7,))]
)
def test_what_lies_in_a_file_stays_there(tmp_path: Path, dtype: str, shape: tuple[int, ...]):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 200, (40, *shape)).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    y, client = np.arange(40) % 2, np.arange(40) % 3
    mapped = Federation.from_arrays(np.load(tmp_path / "x.npy", mmap_mode="r"), y, client=client)
    plain = Federation.from_arrays(x, y, client=client)
    assert in_a_file(mapped)
    assert not in_a_file(plain)
    assert mapped.fingerprint == plain.fingerprint
