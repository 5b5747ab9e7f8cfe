"""The documentation site builds without a warning, and no link in it leads nowhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (
    "index",
    "start",
    "run-folder",
    "privacy",
    "choosing",
    "reading",
    "your-data",
    "deployment",
    "settings",
    "command-line",
    "public-api",
    "api",
    "reproducing",
    "performance",
    "reliability",
    "security",
    "architecture",
    "glossary",
    "changelog",
)
REPORTS = ("sample-report.html", "paper-report.html")  # of runs


class Page(HTMLParser):
    """What a page links to, and what in it can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {key: value for key, value in attributes if value}
        self.anchors |= {given[key] for key in ("id", "name") if key in given}
        self.links += [given[key] for key in ("href", "src") if key in given]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, ROOT / "scripts" / "docs.py", folder, "--smoke"]
    # Without a proxy that answers, whatever asked a network would fail.
    env = {**os.environ, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    for name in PAGES:
        assert (site / f"{name}.html").stat().st_size > 2_000, name
    for name in REPORTS:
        assert (site / name).stat().st_size > 100_000


def test_no_link_leads_nowhere(site: Path) -> None:
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    for name in REPORTS:  # pages of their own, with their own tests
        del pages[site / name]
    repository = re.compile(r"https://github\.com/pgfed/pgfed/(?:blob|edit)/main/([^#?]+)")
    dead, inside = [], 0
    for path, page in pages.items():
        for link in page.links:
            parts, found = urlsplit(link), repository.match(link)
            if found and not (ROOT / unquote(found[1])).exists():
                dead.append(f"{path.name}: {link}")
            if parts.scheme or parts.netloc:
                continue
            inside += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = pages.get(target)
            lost = there and parts.fragment and unquote(parts.fragment) not in there.anchors
            if lost or not target.exists():
                dead.append(f"{path.name}: {link}")
    assert not dead, dead
    assert inside > 200


def test_every_text_in_docs_is_a_page_of_the_site(site: Path) -> None:
    texts = {path.stem for path in (ROOT / "docs").glob("*.md")}
    contents = (site / "index.html").read_text()
    assert not {name for name in texts - {"index"} if f'href="{name}.html"' not in contents}
