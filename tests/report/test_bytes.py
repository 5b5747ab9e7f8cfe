"""The report counts what travelled, entry by entry; runs that sent otherwise stay apart."""

from __future__ import annotations

import pytest

import small_runs
from cli.cli_tools import blobs
from pgfed.report.tables.results import travelled
from pgfed.results.comparison import Group, group
from pgfed.results.folder.reader import load

METHODS = ["fedavg", "pgfed", "fedfomo"]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Group:
    place = tmp_path_factory.mktemp("bytes")
    data = blobs(160)
    for kind in ("none", "int8"):
        small_runs.run(
            (data["x"], data["y"]),
            methods=METHODS,
            out=place / kind,
            backend="serial",
            compression=kind,
            clients=6,
            min_samples=8,
            rounds=3,
            epochs=1,
        )
    (found,) = group([load(place / "none"), load(place / "int8")])
    return found


def test_compressed_runs_are_methods_of_their_own(both: Group) -> None:
    assert len(both.methods) == 2 * len(METHODS)
    assert sum("int8" in method.label for method in both.methods) == len(METHODS)


def test_entries_add_up_and_are_a_quarter(both: Group) -> None:
    table = travelled(both)
    sums: dict[str, float] = {}
    sizes: dict[tuple[str, str], tuple[float, float]] = {}
    for label, row in zip(table.labels, table.records(), strict=True):
        down, up = float(row["down"].value or 0), float(row["up"].value or 0)
        sizes[label, row["key"].text] = down, up
        sums[label] = sums.get(label, 0) + down + up
    for method in both.methods:
        assert sums[method.label] == method.sent()
    labels = [m.label for m in both.methods if m.name == "pgfed"]
    plain, small = sorted(labels, key=lambda label: "int8" in label)
    for key in ("w", "aux", "mean_gradient", "gradient"):
        for before, after in zip(sizes[plain, key], sizes[small, key], strict=True):
            assert 0.25 * before <= after <= 0.28 * before
    assert sizes[plain, "risks"] == sizes[small, "risks"]
    names = {key for label, key in sizes if "fedfomo" in label}
    assert "model_*" in names
    assert not any(key.startswith("model_") and key != "model_*" for key in names)
