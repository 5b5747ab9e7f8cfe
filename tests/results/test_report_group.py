"""Which runs belong together, and what they are called."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pgfed.errors import UserError
from pgfed.report.figures.specification import styles
from pgfed.report.rendering import read
from report.folders import make_folder


def test_same_data_is_one_group_other_data_another(tmp_path: Path) -> None:
    a = make_folder(tmp_path / "a", methods=["local"])
    b = make_folder(tmp_path / "b", methods=["fedavg"])
    c = make_folder(tmp_path / "c", methods=["local"], fingerprint="c" * 64, clients=8)
    groups = read([a, b, c])
    assert [group.title for group in groups] == ["digits, 12 clients", "digits, 8 clients"]
    assert [m.label for m in groups[0].methods] == ["local", "fedavg"]


def test_equal_titles_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    a = make_folder(tmp_path / "a", methods=["local"])
    b = make_folder(tmp_path / "b", methods=["local"], fingerprint="b" * 64)
    assert [g.title for g in read([a, b])] == ["digits, 12 clients (a)", "digits, 12 clients (b)"]


def test_other_seeds_of_the_same_settings_are_the_same_method(tmp_path: Path) -> None:
    a = make_folder(tmp_path / "a", methods=["local", "pgfed"], seeds=[0])
    b = make_folder(tmp_path / "b", methods=["local", "pgfed"], seeds=[1, 2])
    (group,) = read([a, b])
    assert [(m.label, m.seeds) for m in group.methods] == [
        ("local", [0, 1, 2]),
        ("pgfed", [0, 1, 2]),
    ]


def test_other_settings_are_another_method_named_by_them(tmp_path: Path) -> None:
    folders = [
        make_folder(
            tmp_path / f"mu-{mu}",
            methods=["local", "pgfed"],
            seeds=[seed],
            settings={"method": {"pgfed": {"mu": mu, "alpha_lr": 0.01}}},
        )
        for seed, mu in enumerate((0.1, 0.5))
    ]
    (group,) = read(folders)
    labels = [m.label for m in group.methods]
    assert labels == ["local", "pgfed (mu=0.1)", "pgfed (mu=0.5)"]
    style = styles([group])
    assert len({style[label] for label in labels}) == 3


def test_the_same_run_twice_is_told_apart_by_number(tmp_path: Path) -> None:
    folders = [make_folder(tmp_path / name, methods=["pgfed"]) for name in "ab"]
    (group,) = read(folders)
    assert [m.label for m in group.methods] == ["pgfed [1]", "pgfed [2]"]


def test_the_control_stands_beside_pgfed(tmp_path: Path) -> None:
    methods = ["fedavg-local", "local", "fedavg", "fedper", "fedrod", "pgfed-mo", "pgfed"]
    (group,) = read([make_folder(tmp_path / "a", methods=methods)])
    labels = [m.label for m in group.methods]
    assert labels.index("fedavg-local") == labels.index("pgfed") - 1
    assert labels[0] == "local"


def test_a_variant_belongs_to_its_base_and_is_compared_with_the_control(tmp_path: Path) -> None:
    variant = {"base": "pgfed", "alpha_lr": 0.0}
    folder = make_folder(
        tmp_path / "a",
        methods=["pgfed-fixed", "local", "fedavg-local", "pgfed"],
        settings={"method": {"pgfed-fixed": variant}},
    )
    (group,) = read([folder])
    labels = [m.label for m in group.methods]
    assert labels == ["local", "fedavg-local", "pgfed-fixed", "pgfed"]
    fixed = group.methods[2]
    control = group.control(fixed)
    assert control is not None
    assert control.label == "fedavg-local"
    assert "base" not in fixed.settings
    assert fixed.settings["alpha_lr"] == 0.0


def test_a_comparison_uses_the_seeds_both_have(tmp_path: Path) -> None:
    a = make_folder(tmp_path / "a", methods=["local", "pgfed"], seeds=[0, 1, 2])
    (a / "pgfed" / "seed-1" / "clients.csv").unlink()
    (group,) = read([a])
    local, pgfed = group.methods
    found = group.compare(pgfed, local)
    assert found is not None
    assert found.seeds == 2
    expected = pgfed.scores("kept") - local.scores("kept", [0, 2])
    assert found.mean == pytest.approx(expected.mean())
    gain = group.gain(pgfed)
    assert gain is not None
    np.testing.assert_allclose(gain.per_client, expected.mean(axis=0), atol=1e-8)


def test_without_common_seeds_nothing_is_compared(tmp_path: Path) -> None:
    a = make_folder(tmp_path / "a", methods=["local"], seeds=[0])
    b = make_folder(tmp_path / "b", methods=["pgfed"], seeds=[1])
    (group,) = read([a, b])
    local, pgfed = group.methods
    assert group.compare(pgfed, local) is None
    assert group.gain(pgfed) is None


def test_the_nearest_local_is_the_one_to_compare_with(tmp_path: Path) -> None:
    short = make_folder(tmp_path / "short", methods=["local", "pgfed"], rounds=10)
    long = make_folder(tmp_path / "long", methods=["local", "pgfed"], rounds=30)
    (group,) = read([short, long])
    for method in group.methods:
        local = group.baseline(method)
        assert local is not None
        assert local.settings["rounds"] == method.settings["rounds"]


def test_equal_fingerprints_need_equal_clients(tmp_path: Path) -> None:
    folders = [make_folder(tmp_path / str(n), clients=n) for n in (5, 6)]
    with pytest.raises(UserError, match="another number of clients"):
        read(folders)
