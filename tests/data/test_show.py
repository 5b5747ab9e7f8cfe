"""The figure of the class-by-client distribution."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from pgfed.data.federation import Federation
from pgfed.errors import UserError
from pgfed.report.images.distribution import distribution_figure


def federation(clients: int = 5) -> Federation:
    n = 12 * clients
    return Federation.from_arrays(np.zeros((n, 1)), np.arange(n) % 4, np.arange(n) % clients)


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")]
)
def test_figure_is_written(tmp_path: Path, suffix: str, start: bytes):
    pytest.importorskip("matplotlib")
    path = distribution_figure(federation(), tmp_path / "new" / f"clients{suffix}")
    assert path.read_bytes().startswith(start)


def test_many_clients_are_cut_and_the_title_says_so(tmp_path: Path):
    pytest.importorskip("matplotlib")
    path = distribution_figure(federation(230), tmp_path / "clients.svg")
    assert path.stat().st_size < 2_000_000


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def absent(name: str) -> object:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(UserError, match=r"pip install pgfed\[report\]"):
        distribution_figure(federation(), tmp_path / "clients.png")


def test_other_formats_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"'\.doc'; allowed: \.png, \.svg, \.pdf"):
        distribution_figure(federation(), tmp_path / "clients.doc")


def test_a_place_that_cannot_be_written(tmp_path: Path):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        distribution_figure(federation(), tmp_path / "file" / "clients.png")
