"""What a `Result` says of itself, in a terminal, a notebook and an editor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pgfed
from cli.cli_tools import blobs
from pgfed.cli.app import main
from pgfed.errors import UserError

SMALL: dict[str, Any] = {
    "methods": ["local", "fedavg", "pgfed"],
    "rounds": 3,
    "engine": {"backend": "serial"},
}


def data() -> dict[str, Any]:
    made = blobs(160)
    names = np.array(["north", "south", "east", "<west>"])[np.arange(160) % 4]
    return {"dataset": (made["x"], made["y"], names)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[pgfed.Result, pgfed.Result]:
    """In memory, and opened from a folder."""
    folder = tmp_path_factory.mktemp("result") / "run"
    pgfed.run(data(), name="four", out=folder, **SMALL)
    return pgfed.run(data(), name="four", **SMALL), pgfed.open(folder)


def test_its_repr_names_the_run_and_gives_the_verdict(run: tuple[pgfed.Result, ...]) -> None:
    for result in run:
        assert repr(result) == (
            "<pgfed.Result four: 4 clients, 3 methods, 1 seed, 3 rounds. "
            f"{result.verdict.headline}>"
        )


def test_the_verdict_is_the_sentence_that_the_command_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--set", "rounds=3", "--set", 'methods=["local", "pgfed"]']
    words += ["--set", "engine.backend=serial", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit):
        main(words)
    printed = " ".join(capsys.readouterr().out.split())
    assert str(pgfed.open(tmp_path / "run").verdict) in printed


def test_a_notebook_shows_the_verdict_over_a_table(run: tuple[pgfed.Result, ...]) -> None:
    for result in run:
        shown = result._repr_html_()
        local = shown[shown.index("<td>local</td>") :].partition("</tr>")[0]
        assert local.endswith("<td></td><td></td><td></td>")  # gains nothing over itself
        assert f"<strong>{result.verdict}</strong>" in shown
        assert shown.count("<tr>") == 4
        assert "<td>pgfed</td>" in shown


def test_names_are_escaped_in_a_notebook() -> None:
    made = blobs(40)
    names = np.where(np.arange(40) % 2 == 0, "<b>", "&c")
    result = pgfed.run({"dataset": (made["x"], made["y"], names)}, **SMALL)
    assert "<b>" not in result._repr_html_()


def test_completion_offers_public_names_only(run: tuple[pgfed.Result, ...]) -> None:
    assert dir(run[0]) == sorted(pgfed.Result._PUBLIC)
    for name in dir(run[0]):
        assert hasattr(run[0], name)
    documented = (Path(__file__).parents[1] / "docs/public-api.md").read_text()
    for name in [*dir(run[0]), *dir(pgfed)]:
        assert f"`{name}" in documented or f".{name}" in documented, name


def test_clients_of_one_method_or_of_all(run: tuple[pgfed.Result, ...]) -> None:
    for result in run:
        table = result.clients()
        assert table["method"].tolist() == [m for m in SMALL["methods"] for _ in range(4)]
        one = table[table["method"] == "pgfed"].drop(columns="method").reset_index(drop=True)
        assert one.equals(result.clients("pgfed"))


def test_predictions_are_what_the_model_gives_for_the_test_samples(
    run: tuple[pgfed.Result, ...],
) -> None:
    memory = run[0]
    for result in run:
        for number, client in enumerate(["<west>", "east"]):
            found = result.predictions(client, "pgfed")
            x, y = memory.federation.test(number).batch(slice(None))
            with torch.no_grad():
                expected = torch.softmax(memory.model(client, "pgfed")(x).double(), dim=1)
            assert np.allclose(found.predicted, expected.numpy(), atol=1e-6)
            assert (found.target == y.numpy()).all()
            right = expected.argmax(1) == y
            assert (found.outcome == right.numpy()).all()
            assert found.outcome.mean() == pytest.approx(
                result.clients("pgfed").set_index("client")["final"][client]
            )
            row = found.rows()[0]
            assert row["target"] == found.outputs[int(y[0])]
            assert row["predicted"] == found.outputs[int(expected[0].argmax())]
        assert repr(found) == f"<pgfed.Predictions of 'east': {len(found)} test samples>"


def test_predictions_of_values_are_in_their_unit() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3)).astype(np.float32)
    y = (100 + 10 * x[:, :1]).astype(np.float32)
    result = pgfed.run(
        {"dataset": (x, y, np.arange(80) % 2)},
        task={"kind": "regression"},
        methods=["local"],
        rounds=4,
        engine={"backend": "serial"},
    )
    found = result.predictions(0, "local")
    assert 60 < found.predicted.mean() < 140
    error = np.abs(found.predicted - found.target).mean(1)
    assert np.allclose(found.outcome, error, atol=1e-3)


def test_the_page_goes_to_the_folder_or_where_it_is_told(
    run: tuple[pgfed.Result, ...], tmp_path: Path
) -> None:
    memory, opened = run
    with pytest.raises(UserError, match="the run has no folder"):
        memory.report()
    page = memory.report(tmp_path / "page.html")
    assert memory.verdict.headline.split(":")[0] in page.read_text()
    assert opened.report() == opened.folder / "report.html"
    with pytest.raises(UserError, match="cannot be written"):
        memory.report(tmp_path / "nowhere" / "page.html")


def test_figures_are_figures(run: tuple[pgfed.Result, ...], tmp_path: Path) -> None:
    for figure in (run[0].plot_gains(), run[1].plot_curves()):
        assert figure._repr_png_().startswith(b"\x89PNG")
        figure.savefig(tmp_path / "figure.pdf")
    alone = pgfed.run(data(), **{**SMALL, "methods": ["fedavg"]})
    with pytest.raises(UserError, match="plot_gains: there is no baseline"):
        alone.plot_gains()
