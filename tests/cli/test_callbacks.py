"""Those who are told of each round: what they hear, and what becomes of the run if they fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pgfed as package
from cli.cli_tools import Done, blobs
from pgfed.engine.callbacks import Callback, Record, Running
from pgfed.errors import UserError

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL: dict[str, Any] = {
    "methods": ["local", "pgfed"],
    "rounds": 2,
    "engine": {"backend": "serial"},
}


def data() -> dict[str, Any]:
    made = blobs(90)
    return {"dataset": (made["x"], made["y"]), "clients": 3, "min_samples": 5}


class Diary(Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.pages: list[tuple[Any, ...]] = []
        self.last: Running | None = None

    def begin(self, run: Running) -> None:
        self.pages.append(("begin", run.method, run.seed, len(run.history)))

    def round(self, run: Running, record: Record) -> None:
        assert run.history[-1] is record
        scores = run.scores()
        assert scores is not None
        assert np.nanmean(scores) == pytest.approx(record["mean_score"])
        self.pages.append(("round", run.method, record["round"]))

    def end(self, run: Running) -> None:
        self.last = run
        self.pages.append(("end", run.method, len(run.history)))

    def skip(self, run: Running) -> None:
        self.pages.append(("skip", run.method, len(run.history)))

    def close(self) -> None:
        self.pages.append(("close",))


def test_a_callback_hears_of_every_method_seed_and_round() -> None:
    diary = Diary()
    package.run(data(), seeds=[4], callbacks=[diary], **SMALL)
    assert diary.pages == [
        *(("begin", "local", 4, 0), ("round", "local", 1), ("round", "local", 2)),
        *(("end", "local", 2), ("begin", "pgfed", 4, 0), ("round", "pgfed", 1)),
        *(("round", "pgfed", 2), ("end", "pgfed", 2), ("close",)),
    ]
    run = diary.last
    assert run is not None
    assert (run.rounds, run.folder, run.clients) == (2, None, ["0", "1", "2"])
    assert run.settings["lr"] == 0.005
    assert run.settings["mu"] == run.experiment.method["pgfed"]["mu"]
    assert run.matrix() is not None
    assert run.metric.name == "accuracy"


class Tired(Diary):
    """Its server is away from the second round on."""

    def round(self, run: Running, record: Record) -> None:
        super().round(run, record)
        if record["round"] == 2:
            raise ConnectionError("no route to host")


def test_one_that_fails_is_left_behind_and_the_others_and_the_run_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tired, diary = Tired(), Diary()
    with caplog.at_level("WARNING", "pgfed.notes"):
        result = package.run(data(), callbacks=[tired, diary], **SMALL)
    assert len(result.summary) == 2
    assert caplog.messages == [
        "callback Tired: round failed (ConnectionError: no route to host); the run goes on "
        "without it"
    ]
    assert tired.pages[-1] == ("round", "local", 2)
    assert diary.pages[-1] == ("close",)


class Strict(Callback):
    def round(self, run: Running, record: Record) -> None:
        raise UserError("enough: it diverges")


def test_a_user_error_ends_the_run_and_all_are_closed() -> None:
    diary = Diary()
    with pytest.raises(UserError, match="enough"):
        package.run(data(), callbacks=[diary, Strict()], **SMALL)
    assert diary.pages[-1] == ("close",)


# -- named in the experiment -------------------------------------------------------------------

OWN = """
import pgfed

class Shout(pgfed.Callback):
    def begin(self, run):
        print(f"{run.method}: begin in {run.folder}")
    def skip(self, run):
        print(f"{run.method}: {len(run.history)} rounds before")
    def end(self, run):
        print(f"{run.method}: end")
"""
WORDS = [
    *("--set", 'methods=["local"]', "--set", "rounds=1", "--set", "data.clients=3"),
    *("--set", "engine.backend=serial", "--quiet", "--out", "run"),
]
NAMED = ["--set", 'output.callbacks=["shouting:Shout"]']


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "shouting.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shouting", raising=False)
    return folder


def test_an_own_class_is_found_like_other_own_modules(
    pgfed: Callable[..., Done], own: Path
) -> None:
    unfound = pgfed("run", *WORDS, *NAMED)
    assert unfound.code == 2
    assert "output.callbacks: cannot import 'shouting'" in unfound.line
    assert "--module-path DIR" in unfound.line
    done = pgfed("run", *WORDS, *NAMED, "--module-path", own)
    assert (done.code, done.out) == (0, "local: begin in run\nlocal: end\n")
    # What a run folder names is imported only where it is allowed.
    refused = pgfed("resume", "run", "--quiet", "--module-path", own)
    assert refused.code == 2
    assert "output.callbacks: 'shouting:Shout' would import" in refused.line
    again = pgfed("resume", "run", "--quiet", "--module-path", own, "--allow-module", "shouting")
    assert (again.code, again.out) == (0, "local: 1 rounds before\n")


def test_what_is_no_callback_is_one_line(pgfed: Callable[..., Done]) -> None:
    done = pgfed("run", *WORDS, "--set", 'output.callbacks=["json:JSONDecoder"]')
    assert done.code == 2
    assert done.line == (
        "pgfed: callbacks: found JSONDecoder; allowed: subclasses of pgfed.Callback"
    )
    done = pgfed("run", *WORDS, "--set", 'output.callbacks=["tensorbord"]')
    assert "did you mean 'tensorboard'?" in done.line


# -- the examples, with stand-ins for what they log to -----------------------------------------


class Told:
    """Stands in for a module: writes down every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*words: Any, **more: Any) -> Any:
            self.calls.append((name, words, more))
            return self

        return call


def run_example(
    module: str, stands_in: str, cls: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Told, list[dict[str, Any]]]:
    told = Told()
    monkeypatch.setitem(sys.modules, stands_in, SimpleNamespace(**_functions(told)))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, module, raising=False)
    result = package.run(data(), callbacks=[f"{module}:{cls}"], **SMALL)
    return told, [record for run in result.runs for record in run.history.records]


def _functions(told: Told) -> dict[str, Any]:
    names = ("init", "set_experiment", "start_run", "log_params", "log_metrics", "end_run")
    return {name: getattr(told, name) for name in names}


def test_the_example_for_weights_and_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    told, records = run_example("log_to_wandb", "wandb", "Wandb", monkeypatch)
    assert [name for name, _, _ in told.calls] == ["init", "log", "log", "finish"] * 2
    assert told.calls[0][2]["name"] == "local-0"
    assert told.calls[4][2]["config"]["mu"] == 0.1
    logged = [(words[0], more["step"]) for name, words, more in told.calls if name == "log"]
    for (numbers, step), record in zip(logged, records, strict=True):
        assert step == record["round"]
        assert numbers["mean_score"] == record["mean_score"]


def test_the_example_for_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    told, records = run_example("log_to_mlflow", "mlflow", "MLflow", monkeypatch)
    one = ["set_experiment", "start_run", "log_params", "log_metrics", "log_metrics", "end_run"]
    assert [name for name, _, _ in told.calls] == one * 2
    logged = [(words[0], more["step"]) for n, words, more in told.calls if n == "log_metrics"]
    assert [numbers["bytes_up"] for numbers, _ in logged] == [r["bytes_up"] for r in records]
