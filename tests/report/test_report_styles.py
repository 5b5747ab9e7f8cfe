"""Colours and dashes by what a method is in the comparison, and whether they can be seen."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest

from pgfed.methods.registry import METHODS
from pgfed.report.figures.colours import (
    BLUE,
    DARK,
    DIVERGING,
    GREY,
    INK,
    NEVER_MET,
    NEVER_MET_DARK,
    PALE,
    PALETTE,
    PAPER,
    PAPER_DARK,
    SEQUENTIAL,
    STONE,
)
from pgfed.report.figures.specification import styles
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


# -- can they be seen? -------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """WCAG 2's relative luminance."""
    shares = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_the_page_has_the_paper_that_the_colours_are_for() -> None:
    sheet = (files("pgfed.report") / "templates" / "page.css").read_text()
    light, dark, *_ = re.findall(r"--paper: (#\w+)", sheet)
    assert (light, dark) == (PAPER, PAPER_DARK)
    assert re.findall(r"--never-met: (#\w+)", sheet)[:2] == [
        NEVER_MET.lower(),
        NEVER_MET_DARK.lower(),
    ]


@pytest.mark.parametrize("name", ["ink", "soft", "accent", "bad", "good"])
def test_words_can_be_read_in_the_light_and_in_the_dark(name: str) -> None:
    sheet = (files("pgfed.report") / "templates" / "page.css").read_text()
    for paper, colour in zip(
        (PAPER, PAPER_DARK), re.findall(rf"--{name}: (#\w+)", sheet)[:2], strict=True
    ):
        assert contrast(colour, paper) >= 4.5


@pytest.mark.parametrize("colour", [BLUE, GREY, *PALETTE])
def test_labels_of_lines_can_be_read_in_the_light_and_in_the_dark(colour: str) -> None:
    assert contrast(colour, PAPER) >= 4.5
    assert contrast(DARK[colour], PAPER_DARK) >= 4.5


def test_areas_can_be_seen_and_told_from_their_neighbours() -> None:
    assert contrast(STONE, INK) >= 4.5  # an interval over its bar
    assert contrast(DARK[STONE], DARK[INK]) >= 3
    assert contrast(PALE, BLUE) >= 1.5
    assert contrast(DARK[PALE], DARK[BLUE]) >= 1.5
    for colour in (PALE, DARK[PALE]):
        assert contrast(colour, PAPER if colour == PALE else PAPER_DARK) >= 2


def test_many_is_darker_than_few_and_neither_is_nothing() -> None:
    scale = [str(colour) for _, colour in SEQUENTIAL]
    assert all(luminance(few) > luminance(many) for few, many in pairwise(scale))
    for colour in scale:
        assert contrast(colour, PAPER) >= 1.5
        assert contrast(colour, PAPER_DARK) >= 1.5


@pytest.mark.parametrize("never_met", [NEVER_MET, NEVER_MET_DARK])
def test_never_met_is_neither_a_small_change_nor_a_large_one(never_met: str) -> None:
    low, _, small, _, high = (str(colour) for _, colour in DIVERGING)
    assert contrast(never_met, small) >= 2.5
    assert min(contrast(never_met, low), contrast(never_met, high)) >= 1.5
