"""`pgfed.run` from Python."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pgfed
from cli.cli_tools import blobs
from pgfed.api import Result
from pgfed.data.federation import Federation
from pgfed.errors import UserError

QUICK: dict[str, Any] = {
    "engine": {"backend": "serial"},
    "rounds": 3,
    "methods": ["local", "pgfed"],
}


def divided(clients: int = 4) -> dict[str, Any]:
    return {"dataset": arrays(), "clients": clients, "min_samples": 5}


def arrays(n: int = 120) -> tuple[np.ndarray, np.ndarray]:
    data = blobs(n)
    return data["x"], data["y"]


@pytest.fixture(scope="module")
def result() -> Result:
    return pgfed.run(divided(6), cohort=0.5, seeds=[0, 1], **QUICK)


def test_table_has_a_row_per_method_and_seed(result: Result) -> None:
    table = result.table()
    assert table[["method", "seed"]].values.tolist() == [
        *(["local", 0], ["local", 1], ["pgfed", 0], ["pgfed", 1])
    ]
    assert list(table.columns) == list(result.summary[0])


def test_clients_and_history_are_tables(result: Result) -> None:
    clients = result.clients("pgfed", 1)
    assert len(clients) == 6
    mean = clients["final"].mean()
    assert mean == pytest.approx(result.history("pgfed", 1)["mean_score"].iloc[-1])
    assert clients["gain"].mean() == pytest.approx(result.table()["gain_mean"].iloc[3])


def test_without_pandas_tables_are_lists(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert result.table() == result.summary
    assert result.clients("pgfed")[0]["client"] == "0"


def test_a_model_is_the_clients_own_and_scores_as_reported(result: Result) -> None:
    federation = result.federation
    for client in range(len(federation)):
        model = result.model(client, "pgfed")
        assert isinstance(model, nn.Module)
        assert not model.training
        x, y = federation.test(client).batch(slice(None))
        with torch.no_grad():
            accuracy = float((model(x).argmax(1) == y).double().mean())
        assert accuracy == pytest.approx(result.clients("pgfed")["final"][client])


def test_models_differ_between_clients_methods_and_the_global_one(result: Result) -> None:
    def weights(model: nn.Module) -> torch.Tensor:
        return nn.utils.parameters_to_vector(model.parameters())

    took_part = result.clients("pgfed").query("rounds > 0")["client"].tolist()
    own = weights(result.model(took_part[0], "pgfed"))
    for other in (
        result.model(took_part[1], "pgfed"),
        result.model(took_part[0], "local"),
        result.model(took_part[0], "pgfed", seed=1),
        result.global_model("pgfed"),
    ):
        assert not torch.equal(own, weights(other))


def test_asking_for_a_model_leaves_the_random_state(result: Result) -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    result.model(0, "pgfed")
    assert torch.equal(before, torch.random.get_rng_state())


def test_alpha(result: Result) -> None:
    alpha = result.alpha("pgfed")
    assert alpha.shape == (6, 6)
    assert np.isclose(alpha, 1 / 3).any()  # some pairs have not met in three rounds
    with pytest.raises(UserError, match="local learns no matrix"):
        result.alpha("local")


def test_nothing_is_written_without_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pgfed.run(divided(), **QUICK)
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr() == ("", "")


def test_with_out_the_folder_holds_the_same(tmp_path: Path) -> None:
    here = pgfed.run(divided(), **QUICK)
    there = pgfed.run(divided(), out=tmp_path / "run", **QUICK)
    assert (tmp_path / "run/pgfed/seed-0/models/manifest.json").is_file()
    for client in range(4):
        kept, read = (r.model(client, "pgfed").state_dict() for r in (here, there))
        for name, value in kept.items():
            assert torch.equal(value, read[name])
    kept, read = (r.global_model("pgfed").state_dict() for r in (here, there))
    assert all(torch.equal(value, read[name]) for name, value in kept.items())


def test_progress_is_shown_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    pgfed.run(divided(), progress=True, **QUICK)
    printed = capsys.readouterr()
    assert "pgfed seed 0 round 3/3" in printed.err
    assert printed.out == ""


def test_given_clients() -> None:
    x, y = arrays()
    result = pgfed.run((x, y, np.arange(120) % 5 + 10), **QUICK)
    assert len(result.federation) == 5
    assert result.clients("pgfed")["client"].tolist() == ["10", "11", "12", "13", "14"]


def test_a_federation() -> None:
    x, y = arrays()
    federation = Federation.from_arrays(x, y, np.arange(120) % 3)
    result = pgfed.run(federation, **QUICK)
    assert result.federation is federation
    with pytest.raises(UserError, match=r"data\.min_samples: the Federation"):
        pgfed.run({"dataset": federation, "min_samples": 5}, **QUICK)


def test_named_data_and_method_settings() -> None:
    data = {"dataset": "digits", "clients": 5}
    result = pgfed.run(data, train={"lr": 0.02}, method={"pgfed": {"mu": 0.5}}, **QUICK)
    assert result.experiment.train.lr == 0.02
    assert result.experiment.data.clients == 5
    assert result.experiment.method["pgfed"]["mu"] == 0.5
    assert result.experiment.data.dataset == "digits"


class Small(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body = nn.Linear(input_shape[0], 5)
        self.top = nn.Linear(5, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(torch.tanh(self.body(x)))


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_an_own_model(backend: str, tmp_path: Path) -> None:
    options = QUICK | {"engine": {"backend": backend}, "out": tmp_path / "run"}
    result = pgfed.run(divided(), model=Small, **options)
    assert isinstance(result.model(0, "pgfed"), Small)
    assert result.experiment.model.name == f"{__name__}:Small"


def test_a_model_that_has_no_name_works_too() -> None:
    nameless = {"name": lambda shape, classes: Small(shape, classes), "head": "top"}
    result = pgfed.run(divided(), model=nameless, **QUICK)
    assert isinstance(result.model(1, "local"), Small)


def test_models_that_were_not_kept() -> None:
    result = pgfed.run(divided(), output={"models": "last"}, seeds=[5, 6], **QUICK)
    assert isinstance(result.model(0, "pgfed", 6), nn.Module)
    with pytest.raises(UserError, match="pgfed, seed 5"):
        result.model(0, "pgfed", 5)


def test_numbers_of_numpy_are_numbers() -> None:
    options = QUICK | {"rounds": np.int64(1), "seeds": np.arange(2)}
    options["train"] = {"lr": np.float64(0.1)}
    result = pgfed.run(divided(), **options)
    assert result.experiment.rounds == 1
    assert result.experiment.train.lr == 0.1
    assert result.experiment.seeds == [0, 1]


MISTAKES = {
    "unknown key": ({"data": {"client": 4}}, "'clients'"),
    "unknown table's key": ({"train": {"rate": 1}}, "train.rate: unknown key"),
    "a key without its table": ({"lr": 0.1}, r"lr: is a key of \[train\]; write train={'lr': ...}"),
    "data sets per site": ({"data": {"north": arrays()}}, "datasets="),
    "no callback": ({"callbacks": [print]}, "subclasses of pgfed.Callback"),
    "unknown callback": ({"callbacks": ["board"]}, "output.callbacks: unknown 'board'"),
    "wrong value": ({"rounds": 0}, "rounds: found 0"),
    "wrong data": ({"data": 3}, "data: found int"),
    "unknown data": ({"data": "digit"}, "'digits'"),
    "labels of another length": ({"data": (arrays()[0], arrays()[1][:-1])}, "y has shape 119"),
    "size of arrays": ({"data": {"dataset": arrays(), "image_size": 8}}, "image_size"),
    "unknown method": ({"methods": ["pgfd"]}, "'pgfed'"),
}


@pytest.mark.parametrize(("options", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_user_errors(options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        pgfed.run(**({"engine": {"backend": "serial"}} | options))


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda r: r.clients("pgfd"), "'pgfed'"),
        (lambda r: r.history("pgfed", 7), "seed: found 7; allowed: 0, 1"),
        (lambda r: r.model(6, "pgfed"), "client: found 6; allowed: 0 to 5"),
    ],
    ids=["method", "seed", "client"],
)
def test_asking_for_what_is_not_there(result: Result, ask: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        ask(result)  # type: ignore[operator]


def test_the_package_names_what_it_offers() -> None:
    for name in pgfed.__all__:
        assert getattr(pgfed, name) is not None
    assert dir(importlib.import_module("pgfed")) == sorted(pgfed.__all__)
    assert pgfed.testing.check_algorithm is importlib.import_module("pgfed.testing").check_algorithm
    with pytest.raises(AttributeError, match="nothing"):
        pgfed.nothing  # noqa: B018


def test_a_model_that_lives_nowhere_is_told_before_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def net(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))

    options = {"methods": ["local"], "rounds": 1, "engine": {"backend": "serial"}}
    with caplog.at_level("WARNING", "pgfed.notes"):
        pgfed.run(model=net, **options)
        assert caplog.text == ""  # in memory it serves
        pgfed.run(model=net, out=tmp_path / "run", **options)
    assert "put it into a module" in caplog.text
