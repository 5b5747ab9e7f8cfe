"""The page as text: complete, self-contained, repeatable, and safe whatever the names are."""

from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pgfed.errors import UserError
from pgfed.methods.registry import METHODS
from pgfed.report import extras as needs
from pgfed.report import page
from pgfed.report.figures.specification import plain
from pgfed.report.rendering import read, render, write_page
from pgfed.results.comparison import Group
from report.folders import make_folder

EVIL = '<img src=x onerror="alert(1)">'
EVIL_LABEL = "</script><script>alert(2)</script>%{x}"


class Tags(HTMLParser):
    """What a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)


def payload(text: str) -> Any:
    found = re.search(r'id="data">([A-Za-z0-9+/=]+)<', text)
    assert found
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


@pytest.fixture(scope="module")
def html(group: Group) -> str:
    return render([group])


def test_tags_are_balanced_and_ids_unique(html: str) -> None:
    tags = Tags(html)
    assert tags.open == []
    ids = [attrs["id"] for _, attrs in tags.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = [attrs["href"] for tag, attrs in tags.tags if tag == "a"]
    assert all(link and link.startswith("#") and link[1:] in ids for link in links)


def test_nothing_is_fetched(html: str) -> None:
    for tag, attrs in Tags(html).tags:
        assert "src" not in attrs, tag
        assert tag not in ("link", "iframe", "object", "embed", "base")
    assert "@import" not in html
    assert "url(" not in html
    assert "default-src 'none'" in html


def test_semantics(html: str) -> None:
    tags = Tags(html).tags
    names = [tag for tag, _ in tags]
    for landmark in ("header", "main", "nav", "footer", "h1"):
        assert names.count(landmark) == 1
    assert all(attrs.get("scope") for tag, attrs in tags if tag == "th")
    for tag, attrs in tags:
        if tag == "div" and "plot" in (attrs.get("class") or ""):
            assert attrs["role"] == "img"
            assert attrs["aria-label"]
    assert names.count("figure") == names.count("figcaption") >= 5


def test_the_first_screen_says_it(html: str) -> None:
    text = " ".join(" ".join(Tags(html).text).split())
    start = text[:2600]
    assert "Federating helped 12 of 12 clients." in start
    for heading in ("Last 10 rounds", "Best on test", "Gain over local", "Sent (× FedAvg)"):
        assert heading in start
    assert "fedavg-local" in start


def test_equal_runs_give_equal_pages(group: Group, html: str) -> None:
    (again,) = read([folder.path for folder in group.folders])
    assert render([again]) == html


def test_how_to_do_it_again(html: str) -> None:
    text = " ".join(Tags(html).text)
    assert "experiment.toml --out NEW" in text
    assert "f" * 64 in text
    assert "a <CPU> & more" in text


def test_figures_have_a_specification_per_view_and_panel(html: str) -> None:
    (group,) = payload(html)
    views: dict[str | None, int] = {}
    current = None
    for tag, attrs in Tags(html).tags:
        if tag == "select":
            current = attrs.get("data-figure")
        if tag == "option":
            views[current] = views.get(current, 0) + 1
    for figure, panels in group["figures"].items():
        for specs in panels:
            assert len(specs) == views.get(figure, 1), figure


def test_without_local_there_are_no_gains_but_a_page(tmp_path: Path) -> None:
    text = render(read([make_folder(tmp_path / "a", methods=["fedavg", "pgfed"])]))
    assert "gains" not in payload(text)[0]["figures"]
    assert "add fedavg-local to the methods" in " ".join(Tags(text).text)


def test_one_method_is_enough(tmp_path: Path) -> None:
    text = render(read([make_folder(tmp_path / "a", methods=["fedavg"], clients=1, seeds=[3])]))
    assert set(payload(text)[0]["figures"]) == {"curves", "partition"}


def test_studies_have_their_figures(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a", clients=100, dataset="cifar10", methods=["fedavg"])
    arms = [
        {"mu": mu, "lr": lr, "chosen": lr == 0.1, "accuracy": [0.5, 0.6], "gains": [0.1, None]}
        for mu in (0, 0.5)
        for lr in (0.1, 1.0)
    ]
    (folder / "explicit.json").write_text(json.dumps({"arms": arms}))
    curves = {"pgfed": {"epochs": [0, 1], "accuracy": [0.5, 0.8]}}
    (folder / "new_clients.json").write_text(json.dumps(curves))
    text = render(read([folder]))
    figures = payload(text)[0]["figures"]
    over_steps, histogram, rates = figures["explicit"][0]
    assert [trace["name"] for trace in over_steps["data"]] == ["implicit", "explicit, mu = 0.5"]
    assert histogram["data"][0]["x"] == [10.0]
    assert rates["data"][1]["x"] == [0.1, 1.0]
    assert figures["new-clients"][0][0]["data"][0]["y"] == [50.0, 80.0]
    shown = " ".join(" ".join(Tags(text).text).split())
    assert "implicit: +10.0 points (step length 0.1)" in shown
    assert "The paper: explicit +7.73, implicit +5.40" in shown
    assert "pgfed 80.0 % (paper 82.0 %)" in shown.replace("\u00a0", " ")


def test_several_federations_have_ids_of_their_own(tmp_path: Path) -> None:
    a = make_folder(tmp_path / "a")
    b = make_folder(tmp_path / "b", fingerprint="b" * 64, clients=7)
    text = render(read([a, b]))
    ids = [attrs["id"] for _, attrs in Tags(text).tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {"g0-curves", "g1-curves", "overview"} <= set(ids)


# -- whatever people call things ---------------------------------------------------------------


def hostile(tmp_path: Path) -> Path:
    """Names of the user's choice, in every place that takes one."""
    folder = make_folder(
        tmp_path / "a",
        clients=3,
        classes=[EVIL, "b", "c"],
        domains=[EVIL, "d"],
        labels=[EVIL_LABEL, EVIL, "ok"],
        dataset="digits",
        dropped=[{"client": 0, "reason": EVIL}],
    )
    curves = {EVIL: {"epochs": [0, 1], "accuracy": [0.1, 0.2]}}
    (folder / "new_clients.json").write_text(json.dumps(curves))
    environment = json.loads((folder / "environment.json").read_text())
    environment |= {"cpu": EVIL, "command": EVIL, "git_commit": EVIL}
    environment["data"]["name"] = EVIL
    (folder / "environment.json").write_text(json.dumps(environment))
    return folder


def test_names_are_text_never_markup(tmp_path: Path) -> None:
    text = render(read([hostile(tmp_path)]))
    tags = Tags(text)
    assert "img" not in [tag for tag, _ in tags.tags]
    assert not any(name.startswith("on") for _, attrs in tags.tags for name in attrs)
    assert [tag for tag, _ in tags.tags].count("script") == 3
    shown = " ".join(tags.text)
    assert EVIL in shown
    assert EVIL_LABEL in shown


def test_what_plotly_reads_is_escaped_for_it(tmp_path: Path) -> None:
    """plotly turns <b> and <a> into elements and %{x} into numbers; a name must be neither."""
    figures = payload(render(read([hostile(tmp_path)])))[0]["figures"]

    def strings(value: Any) -> list[str]:
        if isinstance(value, str):
            return [value]
        if isinstance(value, dict):  # `meta` is for the page's own script, which compares it only
            return [s for k, v in value.items() if k != "meta" for s in strings(v)]
        return [s for v in value for s in strings(v)] if isinstance(value, list) else []

    found = strings(figures)
    assert any("&lt;img" in s for s in found)
    for text in found:
        assert "<" not in re.sub(r"</?extra>|<br>", "", text)
    assert plain("%{x}") == "%&#123;x}"


# -- size and missing packages -----------------------------------------------------------------


def test_a_large_comparison_stays_small(tmp_path: Path) -> None:
    folder = make_folder(
        tmp_path / "large",
        methods=list(METHODS),
        seeds=[0, 1, 2],
        clients=100,
        rounds=60,
        classes=[f"class {k}" for k in range(100)],
    )
    text = render(read([folder]))
    assert len(text) < 6_000_000


def test_thousands_of_clients_are_thinned(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "many", methods=["local", "pgfed"], seeds=[0], clients=1_100)
    text = render(read([folder]))
    (group,) = payload(text)
    heat = group["figures"]["matrix"][0][0]["data"][0]
    assert len(heat["z"]) == 367  # blocks of 3
    assert len(group["clients"]["names"]) == page.MAX_PICKED
    assert "only the first 1000 of 1100" in " ".join(" ".join(Tags(text).text).split())
    assert len(text) < 6_000_000


def test_write_page(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a", methods=["local", "fedavg"])
    path = write_page(folder)
    assert path == folder / "report.html"
    assert path.read_text().startswith("<!doctype html>")


def test_a_missing_package_is_one_line() -> None:
    with pytest.raises(UserError, match=r"pip install pgfed\[report\]"):
        needs.module("no_such_module_at_all")
