"""The documentation site: `make docs` builds it into site/, without a network."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
ABOUT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = ABOUT["urls"]["Repository"]

project = "pgfed"
author = copyright = "the pgfed authors"
version = release = ABOUT["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"pgfed {version}"
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main"}
html_theme_options["source_directory"] = "docs/"
html_show_sphinx = False
html_copy_source = False
myst_heading_anchors = 4
myst_enable_extensions = ["deflist", "dollarmath"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"

# Files of the repository that are pages of the site, too.
PAGES = {"SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md", "README.md": "start.md"}


def links_out(app: Sphinx, name: str, source: list[str]) -> None:
    """Links to files beside docs/ lead to their page, or into the repository."""

    def target(found: re.Match[str]) -> str:
        path, _, anchor = found[1].partition("#")
        where = PAGES.get(path, f"{REPOSITORY}/blob/main/{path}")
        return f"]({where}{'#' if anchor else ''}{anchor})"

    source[0] = re.sub(r"\]\(\.\./([^)\s]+)\)", target, source[0])


def pages_of_the_root(app: Sphinx, name: str, source: list[str]) -> None:
    """`security` and `changelog` are the files of the repository's root."""
    for file, page in PAGES.items():
        if f"{name}.md" == page and page != "start.md":
            text = (ROOT / file).read_text()
            source[0] = re.sub(r"\]\((?!https?:|#)(?!docs/)", "](../", text).replace(
                "](docs/", "]("
            )


def setup(app: Sphinx) -> None:
    app.connect("source-read", pages_of_the_root, priority=400)
    app.connect("source-read", links_out)
