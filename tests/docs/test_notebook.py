"""The notebook runs from its first cell to its last, and ends in a verdict and a model."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "own_data.ipynb"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own
def test_own_data_to_a_verdict(tmp_path: Path) -> None:
    book = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells), "kept without what it printed"
    client = nbclient.NotebookClient(
        book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    shown = [
        text
        for cell in book.cells
        for out in cell.get("outputs", [])
        for text in (out.get("text", ""), *out.get("data", {}).values())
    ]
    assert any("<table>" in text for text in shown)  # the result shows itself
    assert (
        sum("image/png" in out.get("data", {}) for c in book.cells for out in c.get("outputs", []))
        == 2
    )
    assert any("Linear(in_features=30" in text for text in shown)
    printed = next(out["text"] for c in book.cells for out in c.get("outputs", []) if "text" in out)
    assert printed.split("\n")[0].endswith(".")
