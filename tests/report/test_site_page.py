"""A site's own page, from the lines of its report.csv."""

from __future__ import annotations

from typing import Any

import pytest

from pgfed.model.metrics import ACCURACY
from pgfed.report.pages.site import headline, site_page
from report.test_report_page import EVIL, Tags

ROW = {
    "run": "r1",
    "method": "pgfed",
    "seed": "0",
    "round": "20",
    "client": "north",
    "n_train": "200",
    "n_test": "80",
    "final": "0.9",
    "local": "0.8",
    "gain": "0.1",
    "gain_low": "0.02",
    "gain_high": "0.18",
    "clearly": "gained",
}


def words(text: str) -> str:
    return " ".join(" ".join(Tags(text).text).split()).replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "Federating helped here: +10.0 points."),
        ({"clearly": "lost", "gain": "-0.1"}, "Federating harmed here: −10.0 points."),
        ({"clearly": "no"}, "Whether federating helped here cannot be told (+10.0 points)."),
        ({"clearly": ""}, "how sure that is, is not known"),
        ({"gain": "", "local": ""}, "What federating gained here is not known"),
        ({"round": "5"}, "Too short to judge: 5 rounds; 6 are the least."),
    ],
)
def test_the_first_line_says_what_the_evidence_carries(change: dict[str, Any], said: str) -> None:
    assert said in headline([{**ROW, **change}], ACCURACY)[0]


def test_a_short_run_claims_nothing() -> None:
    text = site_page([{**ROW, "round": "5"}], ACCURACY)
    assert "clearly gained" not in text
    assert 'class="good"' not in text
    assert "Ask for a run of more rounds" in words(text)
    assert 'class="good"' in site_page([ROW], ACCURACY)


@pytest.mark.parametrize(("covered", "sentences"), [("", 0), ("True", 1), ("False", 2)])
def test_exact_numbers_under_privacy_are_for_inside(covered: str, sentences: int) -> None:
    shown = words(site_page([{**ROW, "covered": covered}], ACCURACY))
    said = ("these numbers are exact: they are for inside", "who gives away the model of pgfed")
    assert [text in shown for text in said] == [sentences > 0, sentences > 1]


def test_the_page_is_whole_without_figures(tmp_path: object) -> None:
    worse = {**ROW, "method": "fedavg", "gain": "0.01", "clearly": "no"}
    text = site_page([worse, ROW], ACCURACY)
    tags = Tags(text)
    assert tags.open == []
    assert "script" not in [tag for tag, _ in tags.tags]
    shown = words(text)
    assert "north" in shown
    assert (
        "With pgfed, accuracy goes from 80.0 % without the others to 90.0 %, on 80 test samples"
        in shown
    )
    assert "The 95 % interval of the gain is +2.0 to +18.0." in shown
    assert "clearly gained +10.0 +2.0 to +18.0 80.0 90.0 0 200 80" in shown


def test_names_are_text_never_markup() -> None:
    tags = Tags(site_page([{**ROW, "client": EVIL, "method": EVIL}], ACCURACY))
    assert "img" not in [tag for tag, _ in tags.tags]
    assert EVIL in " ".join(tags.text)
