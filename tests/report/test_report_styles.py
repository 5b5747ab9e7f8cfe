"""Colours and dashes by what a method is in the comparison."""

from __future__ import annotations

from pathlib import Path

from pgfed.methods.registry import METHODS
from pgfed.report.figures.specification import BLUE, GREY, PALETTE, styles
from pgfed.report.rendering import read
from report.folders import make_folder


def test_the_baseline_is_grey_and_a_control_blue_and_dashed(tmp_path: Path) -> None:
    methods = ["local", "fedavg", "fedavg-local", "pgfed", "pgfed-mo", "pgfed-ce"]
    style = styles(read([make_folder(tmp_path / "a", methods=methods)]))
    assert style["local"] == (GREY, "solid")
    assert style["fedavg-local"] == (BLUE, "dash")
    on_trial = ["fedavg", "pgfed", "pgfed-mo", "pgfed-ce"]
    assert [style[name][0] for name in on_trial] == list(PALETTE[:4])
    # Those with one control lie on one another, and must be seen through each other.
    assert [style[name][1] for name in on_trial] == ["solid", "solid", "dot", "dashdot"]


def test_who_controls_nobody_is_a_method_like_others(tmp_path: Path) -> None:
    methods = ["local", "fedavg", "fedavg-local"]
    style = styles(read([make_folder(tmp_path / "a", methods=methods)]))
    assert style["fedavg-local"] == (PALETTE[1], "solid")


def test_all_methods_there_are_can_be_told_apart(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a", methods=list(METHODS), clients=4, rounds=2)
    assert len(set(styles(read([folder])).values())) == len(METHODS)


def test_a_method_looks_the_same_on_every_federation_of_a_page(tmp_path: Path) -> None:
    a = make_folder(tmp_path / "a", methods=["local", "fedavg", "pgfed"])
    b = make_folder(tmp_path / "b", methods=["local", "pgfed"], fingerprint="b" * 64, clients=7)
    assert styles(read([a, b])) == styles(read([a]))
