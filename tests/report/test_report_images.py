"""The figures as files."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from PIL import Image

from pgfed.errors import UserError
from pgfed.report.rendering import read, write_figures
from report.folders import make_folder


def test_every_figure_is_there_and_shows_something(folder: Path, tmp_path: Path) -> None:
    written = write_figures(read([folder]), tmp_path / "figures")
    names = {path.name for path in written}
    figures = ("curves", "gains", "clients", "differences", "partition", "matrix-pgfed")
    assert names == {f"{name}.{kind}" for name in figures for kind in ("pdf", "png", "svg")}
    for path in written:
        if path.suffix == ".png":
            with Image.open(path) as image:
                colours = image.convert("RGB").getcolors(1 << 24)
                assert image.width >= 1000
            assert len(colours) > 50
        elif path.suffix == ".pdf":
            assert path.read_bytes().startswith(b"%PDF")


def test_words_in_an_svg_are_words(folder: Path, tmp_path: Path) -> None:
    write_figures(read([folder]), tmp_path)
    for name, words in (
        ("curves", ["round", "fedavg-local"]),
        ("differences", ["points more than fedavg-local", "pgfed"]),
    ):
        text = (tmp_path / f"{name}.svg").read_text()
        found = re.findall(r"<text[^>]*>([^<]*)</text>", text)
        assert set(words) <= {html.unescape(word) for word in found}


def test_what_cannot_be_drawn_is_left_out(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a", methods=["fedavg"], seeds=[0], clients=3, rounds=3)
    (folder / "data.json").unlink()
    written = write_figures(read([folder]), tmp_path / "figures")
    assert {path.stem for path in written} == {"curves", "partition"}


def test_an_unwritable_folder_is_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_figures(read([folder]), tmp_path / "file" / "figures")
