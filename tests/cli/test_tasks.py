"""Tasks of every kind, from the experiment file to the page."""

from __future__ import annotations

import contextlib
import csv
import html
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, r2_score, roc_auc_score

import pgfed as package
import small_runs
from cli.cli_tools import Done
from cli.task_worlds import CLIENTS, KINDS, METRIC, arrays, write
from pgfed.cli.app import main
from pgfed.data.federation import Federation
from pgfed.engine.rounds import Run
from pgfed.errors import UserError

Command = Callable[..., Done]
METHODS = ("local", "fedavg", "pgfed")
OWN = 'task = {kind = "cli.task_worlds:Quantile"}'
ALLOW = ("--allow-module", "cli.task_worlds")


def rows(folder: Path, method: str, seed: int = 0) -> list[dict[str, str]]:
    with (folder / method / f"seed-{seed}" / "clients.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def column(folder: Path, method: str, name: str) -> list[float]:
    return [float(row[name]) if row[name] else np.nan for row in rows(folder, method)]


def history(folder: Path, method: str) -> list[dict[str, Any]]:
    text = (folder / method / "seed-0" / "history.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def summary(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in json.loads((folder / "summary.json").read_text())}


def words(page: Path) -> str:
    """What a page says, the figures' texts too; without the experiment file and its comments."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"<(style|script|pre)[^>]*>.*?</\1>", " ", text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[io.StringIO]:
    """In this folder, with what is printed."""
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as printed:
        yield printed


def call(*words: object) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code == 0


@pytest.fixture(scope="module", params=KINDS)
def ran(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, str]:
    """(kind, run folder, what was printed), of two worker processes."""
    folder = tmp_path_factory.mktemp(request.param)
    write(folder, request.param)
    with inside(folder) as printed:
        call("run", "exp.toml", "--out", "run", "--set", "engine.workers=2")
    return request.param, folder / "run", printed.getvalue()


def same_results(one: Path, two: Path) -> None:
    """Bit for bit, but for times."""
    for method in METHODS:
        assert rows(one, method) == rows(two, method)
        for mine, other in zip(history(one, method), history(two, method), strict=True):
            timeless = {key for key in mine if not key.endswith("seconds")}
            assert {k: mine[k] for k in timeless} == {k: other[k] for k in timeless}
        models = sorted((one / method / "seed-0" / "models").glob("*.safetensors"))
        assert models
        for model in models:
            assert model.read_bytes() == (two / model.relative_to(one)).read_bytes(), model
        for name in ("outcome", "metric_values"):
            arrays_of = [np.load(run / method / "seed-0" / "evidence.npz") for run in (one, two)]
            assert np.array_equal(*(a[name] for a in arrays_of), equal_nan=True)


def test_one_process_gives_the_same_bits(ran: tuple[str, Path, str]) -> None:
    _, folder, _ = ran
    with inside(folder.parent):
        call("run", "exp.toml", "--out", "serial", "--set", "engine.backend=serial")
    same_results(folder, folder.parent / "serial")


def test_every_reader_is_told_the_metric(ran: tuple[str, Path, str]) -> None:
    kind, folder, printed = ran
    title = METRIC[kind]
    lines = printed.splitlines()
    assert f" {title} " in lines[0]
    page = words(folder / "report.html")
    assert title in page
    found = summary(folder)
    name = found["fedavg"]["metric"]
    assert json.loads((folder / "metric.json").read_text())["name"] == name
    result = package.open(folder)
    assert result.data.metric.title == title
    for method in METHODS:
        # The primary metric of the kept models is that of the last round.
        assert column(folder, method, name) == pytest.approx(
            column(folder, method, "final"), nan_ok=True
        )
        assert list(result.clients(method)[name]) == pytest.approx(
            column(folder, method, name), nan_ok=True
        )
    if kind != "classes":
        for text in (printed, page):
            # As one of the further metrics it has its own column, and no sentence speaks of it.
            spoken = re.findall(r"[^.|]{0,40}accurac[a-z]+[^.|]{0,40}", text, flags=re.IGNORECASE)
            assert [s for s in spoken if not _of_a_table(s)] == []


def _of_a_table(text: str) -> bool:
    return re.search(r"(balanced )?accuracy (in % )?", text, flags=re.IGNORECASE) is not None and (
        "AUC" in text or "F1" in text or "IoU" in text or "Dice" in text
    )


def test_the_median_stands_beside_a_mean_that_one_client_can_own(
    ran: tuple[str, Path, str],
) -> None:
    kind, folder, printed = ran
    head, _, fedavg, *_ = (re.split(r" {2,}", line) for line in printed.splitlines())
    assert ("median client" in head) == (kind == "regression")
    if kind == "regression":
        median = np.median(column(folder, "fedavg", "final"))
        assert fedavg[head.index("median client")] == f"{median:.3f}".replace("-", "−")
        assert f"{median:.3f}".replace("-", "−") in words(folder / "report.html")


def test_the_positive_class_may_be_a_number(pgfed: Command, tmp_path: Path) -> None:
    y = (arrays("binary")["y"] == "sick").astype(np.int64)
    write(tmp_path, "binary", y=y)
    aucs = []
    for positive in (0, 1):
        done = pgfed(
            "run", "exp.toml", "--set", f"task.positive={positive}", "--out", f"r{positive}",
            *("--set", "engine.backend=serial", "--methods", "local"),
        )  # fmt: skip
        assert done.code == 0, done.err
        assert f'positive = "{positive}"' in Path(f"r{positive}/experiment.toml").read_text()
        aucs.append(column(Path(f"r{positive}"), "local", "average-precision"))
    assert aucs[0] != aucs[1]


def test_gains_are_differences_of_scores(ran: tuple[str, Path, str]) -> None:
    _, folder, _ = ran
    for method in METHODS:
        mean, alone = (np.array(column(folder, m, "mean")) for m in (method, "local"))
        assert column(folder, method, "gain") == pytest.approx(
            (mean - alone).tolist(), nan_ok=True, abs=1e-8
        )


def test_scores_are_those_of_the_models_that_are_kept(ran: tuple[str, Path, str]) -> None:
    """Each model by itself, judged by scikit-learn on the client's test samples."""
    kind, folder, _ = ran
    allowed = ["cli.task_worlds"] if kind == "segmentation" else []
    data = arrays(kind)
    for client in range(CLIENTS):
        mine = (data["client"] == client) & (data["split"] == 1)
        model, about = package.load(folder, client, method="pgfed", allow_modules=allowed)
        with torch.no_grad():
            out = model(torch.tensor(data["x"][mine])).double().numpy()
        y = data["y"][mine]
        match kind:
            case "classes":
                expected = (out.argmax(1) == y).mean()
            case "binary":
                expected = roc_auc_score(y == "sick", out[:, 1] - out[:, 0])
            case "multilabel":
                known = [k for k in range(3) if 0 < y[:, k].sum() < len(y)]
                expected = np.mean([roc_auc_score(y[:, k], out[:, k]) for k in known])
            case "regression":
                table = about["task"]
                said = out[:, 0] * table["target_scales"][0] + table["target_means"][0]
                expected = r2_score(y, said)
            case "segmentation":
                expected = np.mean([dice(*pair) for pair in zip(out.argmax(1), y, strict=True)])
        assert about["score"] == pytest.approx(expected, abs=1e-6)


def dice(said: np.ndarray, y: np.ndarray) -> float:
    """Of one image: the mean over the classes that it holds or is said to hold."""
    held = set(np.unique(said)) | set(np.unique(y))
    each = [
        2 * ((said == k) & (y == k)).sum() / ((said == k).sum() + (y == k).sum())
        for k in held - {0}
    ]
    return float(np.mean(each)) if each else 1.0


def test_models_are_taken_home(ran: tuple[str, Path, str]) -> None:
    kind, folder, _ = ran
    with inside(folder.parent) as printed:
        call("evaluate", "run", "--client", 1, "--json", *allowing(kind))
    found = json.loads(printed.getvalue())
    for row in found["models"]:
        if row["model"] == "personal":
            metrics = {k: v for k, v in row["metrics"].items() if v is not None}
            kept = rows(folder, row["method"])[1]
            assert metrics == pytest.approx({name: float(kept[name]) for name in metrics}, abs=1e-6)
        assert (row["confusion"] is None) == (kind not in ("classes", "binary"))
    with inside(folder.parent) as printed:
        call("evaluate", "run", "--client", 1, *allowing(kind))
    assert METRIC[kind] in printed.getvalue()


def test_predictions_are_in_the_terms_of_the_data(ran: tuple[str, Path, str]) -> None:
    kind, folder, _ = ran
    data = arrays(kind)
    model = folder / "pgfed/seed-0/models/client-0001.safetensors"
    np.save(folder.parent / "new.npy", data["x"][:5])
    if kind == "segmentation":
        with inside(folder.parent), pytest.raises(SystemExit) as ended:
            main(["predict", str(model), "new.npy", *ALLOW])
        assert ended.value.code == 2
        return
    with inside(folder.parent) as printed:
        call("predict", model, "new.npy")
    found = list(csv.DictReader(io.StringIO(printed.getvalue())))
    module, about = package.load(model)
    with torch.no_grad():
        out = module(torch.tensor(data["x"][:5])).double()
    match kind:
        case "multilabel":
            assert list(found[0]) == ["file", "row", "0", "1", "2"]
            said = [[float(row[k]) for k in "012"] for row in found]
            np.testing.assert_allclose(said, torch.sigmoid(out), atol=1e-6)
        case "regression":
            scale, mean = about["task"]["target_scales"][0], about["task"]["target_means"][0]
            said = [float(row["target"]) for row in found]
            np.testing.assert_allclose(said, out[:, 0] * scale + mean, rtol=1e-5)
        case _:
            names = np.array(about["classes"])
            assert [row["class"] for row in found] == names[out.argmax(1)].tolist()


def allowing(kind: str) -> tuple[str, ...]:
    return ALLOW if kind == "segmentation" else ()


# -- less is better ----------------------------------------------------------------------------

MAE = """
task = {kind = "regression", metric = "mae"}
output = {keep = "best"}
"""


@pytest.fixture(scope="module")
def by_error(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("mae")
    write(folder, "regression", MAE)
    with inside(folder) as printed:
        call(
            *("run", "exp.toml", "--out", "run", "--set", "engine.backend=serial"),
            *("--set", "data.validation_share=0.3", "--set", "rounds=6"),
        )
    return folder / "run", printed.getvalue()


def test_where_less_is_better_a_gain_is_a_fall(by_error: tuple[Path, str]) -> None:
    folder, printed = by_error
    found = summary(folder)
    alone = np.array(column(folder, "local", "mae"))  # of the models that are kept
    for method in ("fedavg", "pgfed"):
        fall = alone - np.array(column(folder, method, "mae"))
        assert column(folder, method, "gain") == pytest.approx(fall.tolist())
        assert found[method]["gain_mean"] == pytest.approx(fall.mean())
        assert 0 <= found[method]["clients_gained"] <= (fall > 0).sum()
        assert found[method]["target"] is None
        scores = [record["mean_score"] for record in history(folder, method)]
        assert found[method]["best_score"] == min(scores)
        assert found[method]["best_round"] == 1 + int(np.argmin(scores))
    best = min(METHODS, key=lambda m: found[m]["mean_score"])
    assert f"{best} leads" in printed or f"With {best}, mean absolute error (less is" in printed
    page = words(folder / "report.html")
    assert "mean absolute error" in page
    assert "less is better" in page


def test_where_less_is_better_the_kept_models_are_those_of_the_least(
    by_error: tuple[Path, str],
) -> None:
    folder, _ = by_error
    data = arrays("regression")
    for method in METHODS:
        records = history(folder, method)
        on_validation = [record["mean_validation_score"] for record in records]
        manifest = json.loads((folder / method / "seed-0/models/manifest.json").read_text())
        assert manifest["round"] == 1 + int(np.argmin(on_validation))
        for client in range(CLIENTS):
            mine = (data["client"] == client) & (data["split"] == 1)
            model, about = package.load(folder, client, method=method)
            with torch.no_grad():
                out = model(torch.tensor(data["x"][mine]))[:, 0].double().numpy()
            said = out * about["task"]["target_scales"][0] + about["task"]["target_means"][0]
            error = mean_absolute_error(data["y"][mine], said)
            assert about["score"] == pytest.approx(error, rel=1e-5)
            assert column(folder, method, "mae")[client] == pytest.approx(error, rel=1e-5)


def test_a_sweep_chooses_what_is_least(pgfed: Command, tmp_path: Path) -> None:
    write(tmp_path, "regression", 'task = {kind = "regression", metric = "mae"}')
    done = pgfed(
        *("sweep", "exp.toml", "--set", 'methods=["fedavg"]', "--grid", "train.lr=0.000001,0.05"),
        *("--out", "sweep", "--set", "rounds=8"),
    )
    assert done.code == 0, done.err
    with (tmp_path / "sweep/sweep.csv").open(newline="") as file:
        tried = list(csv.DictReader(file))
    scores = [float(row["validation_score"]) for row in tried]
    assert scores[1] < scores[0]
    assert [row["best"] for row in tried] == ["", "yes"]
    assert "mean absolute error, validation" in done.out
    assert "lr = 0.05" in (tmp_path / "sweep/best.toml").read_text()


# -- undefined ---------------------------------------------------------------------------------


def test_where_a_metric_is_undefined_the_client_is_left_out(pgfed: Command, tmp_path: Path) -> None:
    """The test data of the third client has healthy ones only."""
    data = arrays("binary")
    y = data["y"].copy()
    y[(data["client"] == 2) & (data["split"] == 1)] = "healthy"
    write(tmp_path, "binary", y=y)
    done = pgfed("run", "exp.toml", "--out", "run", "--set", "engine.backend=serial")
    assert done.code == 0, done.err
    assert "AUC is undefined on the test data of 1 client (2), left out of every mean." in done.out
    for method, row in summary(tmp_path / "run").items():
        assert row["clients_undefined"] == 1
        final = column(tmp_path / "run", method, "final")
        assert np.isnan(final).tolist() == [False, False, True, False]
        assert row["final_score"] == pytest.approx(np.nanmean(final))
        assert row["metrics"]["auc"] == pytest.approx(np.nanmean(final))
        assert row["median_score"] == pytest.approx(np.nanmedian(final))
        # Of metrics that need no second class there is a value.
        assert not np.isnan(column(tmp_path / "run", method, "accuracy")).any()
        assert history(tmp_path / "run", method)[-1]["client_score"][2] is None
        assert "diverged" not in history(tmp_path / "run", method)[-1]


def test_a_regression_that_diverges_is_told_of(pgfed: Command, tmp_path: Path) -> None:
    """Its error is no number, so it cannot be written as one; the run ends all the same."""
    write(tmp_path, "regression", 'task = {kind = "regression", metric = "mae"}')
    done = pgfed(
        *("run", "exp.toml", "--out", "run", "--set", "engine.backend=serial"),
        *("--set", "train.lr=1e6", "--set", "rounds=8"),
    )
    assert done.code == 0, done.err
    assert "Training failed" in done.out
    assert history(tmp_path / "run", "local")[-1]["diverged"] == CLIENTS
    assert summary(tmp_path / "run")["local"]["final_score"] is None
    page = words(tmp_path / "run/report.html")
    assert "local: training diverged to NaN for 4 clients" in page
    assert "undefined" not in page


# -- going on, own objectives, Python ----------------------------------------------------------


def test_resumed_is_uninterrupted(pgfed: Command, tmp_path: Path) -> None:
    write(tmp_path, "regression", 'task = {kind = "regression", metric = "mae"}')
    serial = ("--set", "engine.backend=serial")
    assert pgfed("run", "exp.toml", "--out", "whole", *serial).code == 0

    step = Run.step
    with pytest.MonkeyPatch.context() as patch:

        def stopping(run: Run) -> Any:
            if run.round == 2 and run.algorithm.name == "pgfed":
                raise KeyboardInterrupt
            return step(run)

        patch.setattr(Run, "step", stopping)
        assert pgfed("run", "exp.toml", "--out", "half", *serial).code != 0
    assert not (tmp_path / "half/summary.json").exists()
    assert pgfed("resume", "half").code == 0
    same_results(tmp_path / "whole", tmp_path / "half")


def test_an_own_objective(pgfed: Command, tmp_path: Path) -> None:
    write(tmp_path, "regression", OWN)
    done = pgfed("run", "exp.toml", "--out", "run")
    assert done.code == 0, done.err
    assert " pinball " in done.out.splitlines()[0]
    for method in METHODS:
        folder = tmp_path / "run"
        assert column(folder, method, "pinball") == pytest.approx(column(folder, method, "final"))
        assert all(0 <= share <= 1 for share in column(folder, method, "above"))
    assert pgfed("resume", "run", *ALLOW).code == 0
    # A folder from elsewhere says whose code it asks for.
    refused = pgfed("evaluate", "run", "--client", 0)
    assert refused.code == 2
    assert "cli.task_worlds:Quantile" in refused.line
    allowed = pgfed("evaluate", "run", "--client", 0, *ALLOW)
    assert allowed.code == 0
    assert "pinball" in allowed.out
    assert "above" in allowed.out


def test_from_python() -> None:
    data = arrays("regression")
    given = {"kind": "regression", "metric": "rmse", "backend": "serial"}
    result = small_runs.run(
        (data["x"], data["y"], data["client"]), methods=["local", "fedavg"], rounds=2, **given
    )
    assert [row["metric"] for row in result.summary] == ["rmse", "rmse"]
    assert result.experiment.task.target_means == pytest.approx([100], abs=30)
    of_classes = Federation.from_arrays(data["x"], data["client"], data["client"])
    with pytest.raises(UserError, match=r"^task\.kind: 'regression' needs a Federation of values"):
        small_runs.run(of_classes, rounds=1, **given)


MISTAKES = {
    "another kind's metric": ('kind = "regression", metric = "auc"', "task.metric: unknown 'auc'"),
    "an unknown kind": ('kind = "ranking"', "task.kind: unknown 'ranking'"),
    "an unknown class": (
        'kind = "binary", positive = "ill"',
        "task.positive: unknown 'ill'; allowed: healthy, sick",
    ),
    "too many weights": (
        'kind = "binary", class_weights = [1.0, 1.0, 1.0]',
        "task.class_weights: found [1.0, 1.0, 1.0]; allowed:",
    ),
    "weights of no classes": (
        'kind = "multilabel", class_weights = "balanced"',
        "task.class_weights: makes no sense",
    ),
    "a word for weights": ('kind = "binary", class_weights = "even"', "task.class_weights"),
    "numbers as classes": ('kind = "classes"', 'task.kind = "regression" predicts numbers'),
}


@pytest.mark.parametrize(("table", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_one_line(pgfed: Command, tmp_path: Path, table: str, said: str) -> None:
    kind = "binary" if "binary" in table else "multilabel" if "multi" in table else "regression"
    write(tmp_path, kind, f"task = {{{table}}}")
    done = pgfed("run", "exp.toml")
    assert done.code == 2
    assert said in done.err.splitlines()[-1]  # after what is said of the data
    assert not (tmp_path / "runs").exists()
