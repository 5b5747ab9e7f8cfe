"""The page as text: complete, self-contained, repeatable, and safe whatever the names are."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pgfed.errors import UserError
from pgfed.methods.registry import METHODS
from pgfed.report import extras as needs
from pgfed.report.figures.colours import STONE
from pgfed.report.figures.ordering import by_likeness
from pgfed.report.figures.specification import plain
from pgfed.report.pages import page
from pgfed.report.pages.facts import next_steps
from pgfed.report.rendering import Format, read, render, write_page
from pgfed.report.tables.clients import each, shown_of
from pgfed.report.tables.results import control, results
from pgfed.results.comparison import Group
from pgfed.results.verdict import judge
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
    links = [attrs["href"] or "" for tag, attrs in tags.tags if tag == "a"]
    inside = [link for link in links if not link.startswith("#client=")]
    assert all(link.startswith("#") and link[1:] in ids for link in inside)
    assert [link for link in links if link not in inside] == [f"#client={i}" for i in range(12)]


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
    assert "Federating helped: 5 of 12 clients clearly gained, none clearly lost" in start
    for heading in (
        "Accuracy of kept models, %",
        "Last 6 rounds",
        "Best on test",
        "Gain over local",
        "Sent (× FedAvg)",
    ):
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
        assert panels[0], figure


def test_beyond_eight_methods_each_has_a_panel_of_its_own(tmp_path: Path) -> None:
    methods = list(METHODS)[:9]
    text = render(read([make_folder(tmp_path / "a", methods=methods, clients=4, rounds=3)]))
    shown = [attrs["data-focus"] for _, attrs in Tags(text).tags if "data-focus" in attrs]
    assert sorted(filter(None, shown)) == sorted(methods)
    (group,) = read([tmp_path / "a"])
    assert shown[0] == group.ranked[0].label  # the best comes first
    assert len(payload(text)[0]["figures"]["curves"]) == 1  # and all are drawn from one


def test_the_leader_is_drawn_last_and_the_control_is_zero(html: str, group: Group) -> None:
    rounds, _, beside = payload(html)[0]["figures"]["curves"][0]
    assert rounds["data"][-1]["meta"] == group.ranked[0].label
    (control,) = [trace for trace in beside["data"] if trace["meta"] == "fedavg-local"]
    assert set(control["y"]) == {0.0}
    by_name = {m.name: m.mean_curve.score for m in group.methods}
    (pgfed,) = [trace for trace in beside["data"] if trace["meta"] == "pgfed"]
    last = 100 * (by_name["pgfed"][-1] - by_name["fedavg-local"][-1])
    assert pgfed["y"][-1] == pytest.approx(last, abs=0.01)


def test_clients_have_names_up_to_sixty(tmp_path: Path) -> None:
    few = make_folder(tmp_path / "few", clients=60, methods=["local", "pgfed"], seeds=[0])
    bars = payload(render(read([few])))[0]["figures"]["gains"][0][0]["data"][0]
    assert (bars["type"], bars["orientation"]) == ("bar", "h")
    assert sorted(bars["y"], key=int) == [str(i) for i in range(60)]
    many = make_folder(tmp_path / "many", clients=61, methods=["local", "pgfed"], seeds=[0])
    first = payload(render(read([many])))[0]["figures"]["gains"][0][0]["data"][0]
    assert (first["type"], "orientation" in first) == ("bar", False)


def test_beyond_a_hundred_clients_the_alike_stand_together(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a", clients=120, methods=["pgfed"], seeds=[0])
    figures = payload(render(read([folder])))[0]["figures"]
    for name in ("matrix", "partition"):
        order = figures[name][0][0]["data"][0]["meta"]["order"]
        assert sorted(order) == list(range(120))
    sizes = read([folder])[0].clients.n_train[order]
    assert not all(a >= b for a, b in pairwise(sizes))  # not by size


def test_every_client_has_a_row_with_what_the_evidence_carries(html: str, group: Group) -> None:
    shown = shown_of(group)
    assert shown is not None
    rows = {row["client"].text: row for row in each(group).records()}
    assert list(rows) == group.clients.names
    for i, name in enumerate(group.clients.names):
        row = rows[name]
        assert row["statement"].text == shown.gain.statements[i]
        alone = np.mean([shown.baseline.runs[s].final[i] for s in (0, 1)])
        assert row["alone"].text == f"{100 * alone:.1f}"
        assert row["gain"].value == pytest.approx(float(shown.gain.per_client[i]))
        assert row["interval"].interval is not None
    taken = [float(row["rounds"].value or 0) for row in rows.values()]
    assert taken == [20.0] * 3 + [0.0] * 9  # the made-up cohort is always the first quarter
    bars = payload(html)[0]["figures"]["gains"][0][0]["data"][0]
    first = bars["customdata"][0][0]
    high = 100 * (shown.gain.high[first] - shown.gain.per_client[first])
    assert bars["error_x"]["array"][0] == pytest.approx(high, rel=1e-3)
    low = 100 * (shown.gain.per_client[first] - shown.gain.low[first])
    assert bars["error_x"]["arrayminus"][0] == pytest.approx(low, rel=1e-3)


CLAIMS = 'class="good"', 'class="leader"', "clearly gained", "Clearly gained:"


def test_a_page_without_a_verdict_claims_nothing(html: str, tmp_path: Path) -> None:
    """Same gains and evidence as on the other page, but of four rounds."""
    short = make_folder(tmp_path / "short", rounds=4)
    (found,) = read([short])
    text = render([found])
    for claim in CLAIMS:
        assert claim in html, claim
        assert claim not in text, claim
    assert "Federating helped" not in text
    shown = " ".join(" ".join(Tags(text).text).split())
    assert "Too short to judge" in shown
    assert (
        f"Run it for longer: pgfed run {short / 'experiment.toml'} --out NEW --rounds 30" in shown
    )
    assert "nobody is said to have gained or lost: the run gives no verdict." in shown
    for trace in payload(text)[0]["figures"]["gains"][0][0]["data"]:
        assert np.all(np.array(trace["marker"]["color"]) == STONE)
    assert {row["statement"].text for row in each(found).records()} == {"not judged"}
    (trial,) = control(found).records()
    assert (trial["meaning"].text, trial["better"].text) == ("not judged", "–")
    for format in (Format.latex, Format.md, Format.csv):
        assert "textbf" not in render([found], format)
        assert "clearly gained" not in render([found], format)


def test_clients_are_counted_by_evidence_beside_the_control_too(group: Group) -> None:
    """Nearly all differ by sign; their samples carry less."""
    (trial,) = control(group).records()
    pgfed, twin = (next(m for m in group.methods if m.name == name)
                   for name in ("pgfed", "fedavg-local"))  # fmt: skip
    found, compared = group.gain(pgfed, twin), group.compare(pgfed, twin)
    assert found is not None
    assert compared is not None
    assert compared.better + compared.worse > 9
    counts = [trial[key].value for key in ("better", "worse", "untold")]
    assert counts == [found.gained, found.lost, found.untold]
    assert sum(map(int, counts[:2])) < compared.better + compared.worse
    assert sum(map(int, counts)) == 12


def test_the_title_says_what_it_is_about(tmp_path: Path) -> None:
    text = render(read([make_folder(tmp_path / "e", methods=["local", "fedavg"])]))
    assert "<title>e: digits, 12 clients: who gained</title>" in text


def test_several_runs_say_once_what_differs(tmp_path: Path) -> None:
    folders = [
        make_folder(tmp_path / f"run-{lr}", methods=["local", "pgfed"], rounds=rounds, seeds=[0],
                    settings={"train": {"lr": lr}})
        for lr, rounds in ((0.005, 8), (0.1, 9))
    ]  # fmt: skip
    groups = read(folders)
    shown = " ".join(" ".join(Tags(render(groups)).text).split())
    assert f"Run 2: {folders[1]}: rounds 9 instead of 8; lr 0.1 instead of 0.005" in shown
    assert groups[0].methods[-1].label == "pgfed [2]"
    runs = [row["run"].text for row in results(groups[0]).records()]
    assert runs == ["run-0.005", "run-0.1"] * 2


def test_what_next_follows_from_the_verdict(html: str, group: Group) -> None:
    shown = " ".join(" ".join(Tags(html).text).split())
    assert "What next" in shown
    assert f"pgfed evaluate {group.folders[0].path} --client NAME" in shown
    n = group.clients.n_test
    steps = next_steps(group, judge(group))
    assert [step.partition(":")[0] for step in steps] == [
        "To know whether one client gained",
        "To know which method is best",
        "Until then pgfed and fedavg-local can be defended equally; fedavg-local is the simplest "
        "of them.",
        "To take a client's model",
    ]
    assert f"more test samples there (now {n.min()} to {n.max()} each)" in steps[0]
    assert "--seeds 0,1,2" in steps[1]


def test_who_is_not_called_in_spite_of_an_own_interval_is_told_why(group: Group) -> None:
    shown = shown_of(group)
    assert shown is not None
    assert "by luck" not in each(group).caption  # whose interval leaves out zero is called
    found = np.flatnonzero(shown.gain.low > 0)
    assert len(found) == 5
    p = np.ones(len(group.clients))
    p[found] = 0.04  # not enough among twelve
    doubtful = Group(group.title, group.folders, group.methods)
    key = shown.method.label, shown.baseline.label, True
    doubtful._gains[key] = replace(shown.gain, p=p)
    names = ", ".join(f"client {i}" for i in found)
    assert (
        f"Of {names} the own intervals leave out zero, and yet it cannot be told: among 12 clients "
        "one can look like a winner or a loser by luck"
    ) in each(doubtful).caption


def test_alike_rows_become_neighbours() -> None:
    rows = np.array([[9, 1, 0], [0, 0, 5], [3, 0, 0], [0, 1, 40], [0, 7, 0]])
    place = np.argsort(by_likeness(rows))
    assert abs(place[0] - place[2]) == 1
    assert abs(place[1] - place[3]) == 1


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


@pytest.mark.nightly
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
