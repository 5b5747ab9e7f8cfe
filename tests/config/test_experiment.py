"""The experiment file: defaults, overrides, and the document that repeats a run."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import tomli_w

from pgfed.config.experiment import data_root, from_dict, load, make_methods
from pgfed.config.tables import Experiment
from pgfed.errors import UserError
from pgfed.methods import registry as algorithms
from pgfed.methods.settings import PersonalConfig


def test_every_key_has_a_default() -> None:
    assert load(None) == Experiment()
    assert Experiment().data.dataset == "digits"


def test_the_example_of_the_design_is_valid() -> None:
    experiment = from_dict(
        tomllib.loads("""
            name = "cifar10-25"
            seeds = [0, 1, 2]
            rounds = 300
            cohort = 0.25
            methods = ["local", "fedavg", "pgfed", "pgfed-mo", "pgfed-ce"]
            evaluate_every = 1
            [data]
            dataset = "cifar10"
            clients = 25
            partition = "dirichlet"
            alpha = 0.3
            test_share = 0.25
            validation_share = 0.0
            min_samples = 40
            seed = 1
            [model]
            name = "cnn"
            [train]
            epochs = 5
            batch_size = 10
            lr = 0.005
            momentum = 0.9
            momentum_policy = "paper"
            reset_momentum = false
            [method.pgfed]
            mu = 0.1
            alpha_lr = 0.01
            [method.pgfed-mo]
            mu = 0.1
            alpha_lr = 0.01
            beta = 0.5
            [engine]
            backend = "process"
            workers = 0
            [output]
            models = "all"
        """)
    )
    methods, _ = make_methods(experiment)
    assert list(methods) == experiment.methods
    assert experiment.cohort_size(25) == 6


@pytest.mark.parametrize(
    ("share", "clients", "m"),
    [
        *((0.25, 25, 6), (0.25, 50, 12), (0.25, 100, 25), (0.5, 25, 12), (0.25, 20, 5)),
        *((0.01, 5, 1), (1.0, 7, 7), (0.29, 100, 29), (0.3, 10, 3)),
    ],
)
def test_cohort_size(share: float, clients: int, m: int) -> None:
    assert Experiment(cohort=share).cohort_size(clients) == m


@pytest.mark.parametrize(
    ("text", "value"),
    [("rounds=7", 7), (" rounds = 7", 7)],
)
def test_set_a_key(text: str, value: int) -> None:
    assert load(None, [text]).rounds == value


def test_set_takes_toml_and_falls_back_to_strings() -> None:
    experiment = load(
        None,
        [
            "seeds=[4, 5]",
            "data.dataset=npz:a/b.npz",
            'model.name="mlp"',
            "train.reset_momentum=true",
            "method.pgfed.mu=0.5",
            "train.lr=1e-3",
        ],
    )
    assert experiment.seeds == [4, 5]
    assert experiment.data.dataset == "npz:a/b.npz"
    assert experiment.model.name == "mlp"
    assert experiment.train.reset_momentum is True
    assert experiment.train.lr == 0.001
    assert make_methods(experiment)[0]["pgfed"].mu == 0.5  # type: ignore[attr-defined]


def test_a_value_cannot_smuggle_in_a_second_key() -> None:
    with pytest.raises(UserError, match="rounds"):
        load(None, ["rounds=3\nseeds = [9]"])


def test_the_last_override_wins() -> None:
    assert load(None, ["rounds=3", "rounds=4"]).rounds == 4


def test_the_file_names_the_experiment(tmp_path: Path) -> None:
    path = tmp_path / "my plant (2).toml"
    path.write_text("rounds = 3")
    assert load(path).name == "my-plant-2"
    path.write_text('name = "other"')
    assert load(path).name == "other"


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        ("digits", "digits"),
        ("cifar10", "cifar10"),
        ("npz:mine.npz", "mine"),
        ("npz:/some where/scans (2).v1.npz", "scans-2-.v1"),
        ("folder:photos/cats/", "cats"),
        ("folder:.", "here"),
        ("folder:~nobody/äö", "experiment"),
        ("folder:/", "experiment"),
        ("npz:" + 150 * "a" + ".npz", 100 * "a"),
        ("memory", "memory"),
    ],
)
def test_the_data_names_the_experiment(
    dataset: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    found = load(None, [f"data.dataset={dataset}"])
    assert found.name == name
    again = from_dict(tomllib.loads(tomli_w.dumps(found.document())))
    assert again == found  # the name passes the check that a given one must pass
    assert load(None, [f"data.dataset={dataset}", "name=other"]).name == "other"
    assert load(None, [f"data.dataset={dataset}"], smoke=True).name == f"{name[:90]}-smoke"
    assert load(None, [f"data.dataset={dataset}", "name=other"], smoke=True).name == "other"


def test_a_method_overrides_the_training_table() -> None:
    content = {
        "methods": ["fedavg", "pgfed"],
        "train": {"lr": 0.1, "epochs": 2},
        "method": {"pgfed": {"lr": 0.2, "mu": 0.3}},
    }
    methods, resolved = make_methods(from_dict(content))
    assert (methods["fedavg"].train.lr, methods["pgfed"].train.lr) == (0.1, 0.2)
    assert (methods["fedavg"].train.epochs, methods["pgfed"].train.epochs) == (2, 2)
    table = resolved.method["pgfed"]
    assert (table["mu"], table["lr"]) == (0.3, 0.2)
    assert "epochs" not in table  # it is in [train]


def test_an_own_method_has_the_folder_of_its_class() -> None:
    content = {"methods": ["pgfed.methods.pgfed:PGFed"], "method": {"pgfed": {"mu": 0.7}}}
    methods, _ = make_methods(from_dict(content))
    assert methods["pgfed"].mu == 0.7  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", algorithms.METHODS)
def test_the_document_repeats_every_method(name: str) -> None:
    methods, resolved = make_methods(from_dict({"methods": [name]}))
    again = from_dict(tomllib.loads(tomli_w.dumps(resolved.document())))
    assert make_methods(again) == (methods, resolved)


def test_data_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGFED_DATA", raising=False)
    assert data_root(None) == Path("data")
    monkeypatch.setenv("PGFED_DATA", "there")
    assert data_root(None) == Path("there")
    assert data_root("here") == Path("here")


# -- [personal] --------------------------------------------------------------------------------


def personal(methods, **content):
    made, resolved = make_methods(from_dict({"methods": methods, **content}))
    return made, resolved


def test_a_key_of_personal_skips_methods_for_which_it_makes_no_sense(caplog):
    methods = ["local", "fedavg", "fedper", "fedrod", "apfl"]
    made, resolved = personal(methods, personal={"frame": "serving"})
    framed = {name: method.personal.frame for name, method in made.items()}
    assert framed == {name: "serving" if name == "fedavg" else "none" for name in methods}
    assert resolved.method["fedrod"]["personal"]["frame"] == "none"
    (line,) = [r.getMessage() for r in caplog.records]
    assert line.startswith("personal.frame: not for fedper (its classifier is each client's own)")
    assert "local" not in line.split("(")[0]
    again, _ = make_methods(from_dict(resolved.document()))
    assert {name: method.personal for name, method in again.items()} == {
        name: method.personal for name, method in made.items()
    }
    assert len(caplog.records) == 1  # the resolved file says it all


@pytest.mark.parametrize(
    ("method", "table", "said"),
    [
        ("fedrod", {"frame": "training"}, "frame: found 'training'; allowed: 'none', as it keeps"),
        ("fedper", {"frame": "training"}, "frame: found 'training'; allowed: 'none', as its class"),
        ("lg-fedavg", {"frame": "serving"}, "frame: found 'serving'; allowed: 'none', as its pers"),
        ("fedavg", {"blend": 0.5}, "blend: found 0.5; allowed: 1.0, as it has no own model"),
        ("fedavg", {"refresh": True}, "refresh: found true; allowed: false, as its personal"),
        ("fedavg", {"frame": "servin"}, "frame: found 'servin' (did you mean 'serving'?)"),
        ("pgfed", {"blend": 2}, "blend: found 2; allowed: a number from 0 up to 1 or 'auto'"),
        ("pgfed", {"frames": 2}, "frames: unknown key (did you mean 'frame'?)"),
    ],
)
def test_in_a_methods_own_table_it_is_refused(method, table, said):
    with pytest.raises(UserError) as error:
        personal([method], method={method: {"personal": table}})
    assert str(error.value).startswith(f"method.{method}.personal.{said}")


def test_a_methods_own_table_goes_before_personal():
    table = {"pgfed": {"personal": {"frame": "none"}}, "mine": {"base": "pgfed", "mu": 0.2}}
    general = {"frame": "training", "blend": 0.5}
    made, _ = personal(["pgfed", "mine"], personal=general, method=table)
    assert made["pgfed"].personal == PersonalConfig("none", 0.5)
    assert made["mine"].personal == PersonalConfig("none", 0.5)


@pytest.mark.parametrize("text", ["a." * 20_000 + "a = 1", '["a"' + ' . "a"' * 100 + "]"])
def test_a_key_without_end_is_refused_at_once(tmp_path: Path, text: str):
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    with pytest.raises(UserError, match="a key of more than 64 parts"):
        load(path)
