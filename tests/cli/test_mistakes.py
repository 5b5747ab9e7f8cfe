"""A mistake is one line that names the key; exit code 2; nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cli.cli_tools import Done, blobs, tree

# In the experiment file (or by --set, which is the same from here on): content, words of the line.
FILE_MISTAKES = {
    "unknown key": ("round = 4", ["round:", "'rounds'", "allowed"]),
    "unknown key in a table": ("[data]\nclints = 4", ["data.clints", "'clients'"]),
    "key of another table": ("lr = 0.1", ["lr:", "'train.lr'"]),
    "table is a value": ("data = 3", ["data:", "found 3", "a table"]),
    "string for an integer": ('rounds = "ten"', ["rounds", "'ten'", "integer"]),
    "no rounds": ("rounds = 0", ["rounds", "found 0", "from 1"]),
    "boolean for an integer": ("rounds = true", ["rounds", "true", "integer"]),
    "fraction of a round": ("rounds = 2.5", ["rounds", "2.5", "integer"]),
    "never scored": ("evaluate_every = 0", ["evaluate_every", "found 0"]),
    "empty cohort": ("cohort = 0", ["cohort", "found 0", "above 0"]),
    "cohort above one": ("cohort = 1.5", ["cohort", "1.5", "up to 1"]),
    "cohort in words": ('cohort = "all"', ["cohort", "'all'", "a number"]),
    "no seeds": ("seeds = []", ["seeds", "at least one"]),
    "a seed twice": ("seeds = [1, 1]", ["seeds", "[1, 1]", "once"]),
    "seeds without brackets": ("seeds = 3", ["seeds", "found 3", "a list"]),
    "negative seed": ("seeds = [0, -1]", ["seeds[1]", "-1", "from 0"]),
    "no methods": ("methods = []", ["methods", "at least one"]),
    "misspelt method": ('methods = ["pgfd"]', ["methods", "'pgfd'", "did you mean 'pgfed'"]),
    "a method twice": ('methods = ["local", "local"]', ["methods", "'local'", "twice"]),
    "method is no string": ("methods = [1]", ["methods[0]", "found 1", "a string"]),
    "own method that is not there": ('methods = ["no_such:Way"]', ["methods", "'no_such'"]),
    "own method that is none": ('methods = ["pgfed.errors:UserError"]', ["methods", "Algorithm"]),
    "table of no method": ("[method.pgfedd]\nmu = 1", ["method", "'pgfedd'", "'pgfed'"]),
    "method's table is a value": ("[method]\npgfed = 1", ["method.pgfed", "a table"]),
    "misspelt hyper-parameter": ("[method.pgfed]\nmuu = 1", ["method.pgfed.muu", "'mu'"]),
    "hyper-parameter in words": ('[method.pgfed]\nmu = "big"', ["method.pgfed.mu", "'big'"]),
    "hyper-parameter not a number": ("[method.pgfed]\nmu = nan", ["method.pgfed.mu", "nan"]),
    "hyper-parameter not an option": (
        '[method.pgfed]\nalpha_order = "prae"',
        ["method.pgfed.alpha_order", "'prae'", "'pre'", "'post'"],
    ),
    "training key of a method": ("[method.pgfed]\nlr = -1", ["method.pgfed.lr", "-1"]),
    "method that is not run": (
        'methods = ["local"]\n[method.fedavg]\nmu = 1',
        ["method.fedavg.mu", "unknown"],
    ),
    "alpha zero": ("[data]\nalpha = 0", ["data.alpha", "found 0", "above 0"]),
    "alpha infinite": ("[data]\nalpha = inf", ["data.alpha", "inf"]),
    "misspelt partition": ('[data]\npartition = "iidd"', ["data.partition", "'iid'"]),
    "misspelt data set": ('[data]\ndataset = "digit"', ["data.dataset", "'digits'"]),
    "data set that is not here": ('[data]\ndataset = "cifar10"', ["cifar10", "data fetch"]),
    "no clients": ("[data]\nclients = 0", ["data.clients", "found 0"]),
    "more clients than samples": ("[data]\nclients = 100000", ["data.clients", "1797"]),
    "too many samples asked": ("[data]\nmin_samples = 500", ["data.min_samples", "500"]),
    "given without clients": ('[data]\npartition = "given"', ["data.partition", "digits"]),
    "domain without domains": ('[data]\npartition = "domain"', ["data.partition", "digits"]),
    "too many classes": (
        '[data]\npartition = "classes"\nclasses_per_client = 11',
        ["data.classes_per_client", "11"],
    ),
    "everything is test": ("[data]\ntest_share = 1.0", ["data.test_share", "1.0"]),
    "a word for a switch": (
        '[data]\nstratify = "yes"',
        ["data.stratify: found 'yes'", "'auto' or true"],
    ),
    "misspelt weights": (
        '[task]\nclass_weights = "balance"',
        [
            "task.class_weights: found 'balance' (did you mean 'balanced'?)",
            "'none', 'balanced' or a",
        ],
    ),
    "resizing what has one size": ("[data]\nimage_size = 32", ["data.image_size", "digits"]),
    "run on arrays": ('[data]\ndataset = "memory"', ["data.dataset", "npz:PATH"]),
    "unknown model": ('[model]\nname = "mlpp"', ["model.name", "'mlp'"]),
    "model too large": ('[model]\nname = "cnn"', ["model.name", "16x16"]),
    "factory that is not there": ('[model]\nname = "no_such:f"', ["model.name", "no_such"]),
    "head that is not there": ('[model]\nhead = "top"', ["model.head", "'top'"]),
    "learning rate zero": ("[train]\nlr = 0", ["train.lr", "above 0"]),
    "momentum one": ("[train]\nmomentum = 1", ["train.momentum", "not including, 1"]),
    "negative batch": ("[train]\nbatch_size = -1", ["train.batch_size", "-1"]),
    "no epochs": ("[train]\nepochs = 0", ["train.epochs", "found 0"]),
    "string for a switch": ('[train]\nreset_momentum = "no"', ["train.reset_momentum", "true or"]),
    "misspelt backend": ('[engine]\nbackend = "proces"', ["engine.backend", "'process'"]),
    "negative workers": ("[engine]\nworkers = -1", ["engine.workers", "-1"]),
    "no device": ('[engine]\ndevice = "gpu"', ["engine.device", "'gpu'"]),
    "models kept sometimes": ('[output]\nmodels = "some"', ["output.models", "'all'"]),
    "name is a path": ('name = "../up"', ["name", "'../up'"]),
    "not TOML": ("rounds = = 3", ["exp.toml", "line 1"]),
    "nested without end": ("seeds = " + "[" * 5000, ["exp.toml", "TOML"]),
    "date for a number": ("rounds = 1979-05-27", ["rounds", "1979-05-27"]),
}


@pytest.mark.parametrize(("content", "words"), FILE_MISTAKES.values(), ids=FILE_MISTAKES)
def test_experiment_file(
    pgfed: Callable[..., Done], tmp_path: Path, content: str, words: list[str]
) -> None:
    (tmp_path / "exp.toml").write_text(content)
    _refused(pgfed, tmp_path, ["run", "exp.toml"], words)


COMMAND_MISTAKES = {
    "no such file": (["run", "none.toml"], ["none.toml", "No such file"]),
    "file is a folder": (["run", "."], [".:", "directory"]),
    "set without value": (["run", "--set", "rounds"], ["--set", "'rounds'", "key=value"]),
    "set without key": (["run", "--set", "=3"], ["--set", "key=value"]),
    "set into a value": (
        ["run", "--set", "rounds=3", "--set", "rounds.x=1"],
        ["--set rounds.x", "no table"],
    ),
    "set what is unknown": (["run", "--set", "train.lrr=1"], ["train.lrr", "'lr'"]),
    "unknown command": (["runn"], ["'runn'", "'run'"]),
    "unknown option": (["run", "--outt", "x"], ["--outt", "--out"]),
    "option without value": (["run", "--out"], ["--out"]),
    "two experiments": (["run", "a.toml", "b.toml"], ["b.toml"]),
    "unknown method": (["methods", "--show", "fedavgg"], ["'fedavgg'", "'fedavg'"]),
    "unknown data set": (["data", "fetch", "minst"], ["'minst'", "'mnist'"]),
    "no data command": (["data", "shw"], ["'shw'"]),
}


@pytest.mark.parametrize(("argv", "words"), COMMAND_MISTAKES.values(), ids=COMMAND_MISTAKES)
def test_command(
    pgfed: Callable[..., Done], tmp_path: Path, argv: list[str], words: list[str]
) -> None:
    _refused(pgfed, tmp_path, argv, words)


OWN_DATA_MISTAKES = {
    "labels missing": (lambda d: {"x": d["x"]}, ["'y'"]),
    "unknown array": (lambda d: d | {"client_id": d["y"]}, ["'client_id'", "'client'"]),
    "NaN": (lambda d: d | {"x": np.where(d["x"] == d["x"].max(), np.nan, d["x"])}, ["x", "NaN"]),
    "labels of other names": (
        lambda d: d | {"y": d["y"].astype(str), "class_names": np.array(["a", "b", "c"])},
        ["class: unknown '0'", "a, b, c"],
    ),
    "labels are fractions": (lambda d: d | {"y": d["y"] + 0.5}, ["y", "integers"]),
    "one class": (lambda d: d | {"y": 0 * d["y"]}, ["1 class"]),
    "labels out of range": (
        lambda d: d | {"class_names": np.array(["a", "b"])},
        ["label 2", "0 to 1"],
    ),
    "fewer labels than samples": (lambda d: d | {"y": d["y"][:-1]}, ["y", "60"]),
    "channels last": (
        lambda d: d | {"x": np.zeros((60, 8, 8, 3), np.uint8)},
        ["x", "N x C x H x W"],
    ),
    "truth values for pixels": (lambda d: d | {"x": d["x"] > 0}, ["x", "uint8"]),
    "pickled": (lambda d: d | {"y": d["y"].astype(object)}, ["'y'", "pickle"]),
    "client with test data only": (
        lambda d: d | {"client": d["y"], "split": (d["y"] == 1).astype(int)},
        ["client 1", "training sample"],
    ),
    "third part": (lambda d: d | {"split": d["y"]}, ["split", "2"]),
}


@pytest.mark.parametrize(("spoil", "words"), OWN_DATA_MISTAKES.values(), ids=OWN_DATA_MISTAKES)
def test_own_data(
    pgfed: Callable[..., Done], tmp_path: Path, spoil: Callable[..., object], words: list[str]
) -> None:
    np.savez(tmp_path / "own.npz", **spoil(blobs(60)))
    _refused(pgfed, tmp_path, ["run", "--set", "data.dataset=npz:own.npz"], words)


def test_own_data_that_is_no_archive(pgfed: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "own.npz").write_text("x, y\n1, 2\n")
    _refused(pgfed, tmp_path, ["run", "--set", "data.dataset=npz:own.npz"], ["own.npz"])


def test_own_data_that_is_not_there(pgfed: Callable[..., Done], tmp_path: Path) -> None:
    _refused(pgfed, tmp_path, ["run", "--set", "data.dataset=npz:own.npz"], ["own.npz", "exist"])


def test_other_number_of_clients_than_given(pgfed: Callable[..., Done], tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", **blobs(60), client=np.arange(60) % 3)
    argv = ["run", "--set", "data.dataset=npz:own.npz", "--set", "data.clients=4"]
    _refused(pgfed, tmp_path, argv, ["data.clients", "found 4", "3"])


def test_unreadable_image(pgfed: Callable[..., Done], tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        Image.new("RGB", (20, 20)).save(tmp_path / "pets" / name / "a.png")
    (tmp_path / "pets/dog/b.png").write_bytes(b"not an image")
    argv = ["run", "--set", "data.dataset=folder:pets"]
    _refused(pgfed, tmp_path, argv, ["b.png", "image"])


def test_file_that_is_no_text(pgfed: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_bytes(b"\xff\xfe\x00")
    _refused(pgfed, tmp_path, ["run", "exp.toml"], ["exp.toml", "UTF-8"])


def test_file_that_is_huge(pgfed: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_bytes(b"#" * 1_000_001)
    _refused(pgfed, tmp_path, ["run", "exp.toml"], ["exp.toml", "1,000,000"])


def test_run_folder_that_is_in_use(pgfed: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old/summary.json").write_text("[]")
    _refused(pgfed, tmp_path, ["run", "--out", "old"], ["--out", "old", "not empty", "another"])


def test_run_folder_that_is_a_file(pgfed: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "old").write_text("")
    _refused(pgfed, tmp_path, ["run", "--out", "old"], ["--out", "old", "file"])


def test_run_folder_that_cannot_be_made(pgfed: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "old").write_text("")
    _refused(pgfed, tmp_path, ["run", "--out", "old/new"], ["old/new", "cannot be written"])


def test_run_folder_that_is_read_only(pgfed: Callable[..., Done], tmp_path: Path) -> None:
    # /proc refuses even root.
    _refused(pgfed, tmp_path, ["run", "--out", "/proc/pgfed"], ["/proc/pgfed", "cannot be written"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_device_that_is_not_there(pgfed: Callable[..., Done], tmp_path: Path) -> None:
    _refused(pgfed, tmp_path, ["run", "--device", "cuda"], ["engine.device", "'cuda'"])


def _refused(pgfed: Callable[..., Done], folder: Path, argv: list[str], words: list[str]) -> None:
    before = tree(folder)
    done = pgfed(*argv)
    assert done.code == 2
    assert done.out == ""
    assert done.line.startswith("pgfed: ")
    for word in words:
        assert word in done.line
    assert tree(folder) == before


def test_a_federations_folder_is_not_taken_for_a_run(
    pgfed: Callable[..., Done], tmp_path: Path
) -> None:
    for name in ("experiment.toml", "federation.toml"):
        (tmp_path / name).write_text("")
    for command in ("report", "resume", "watch"):
        done = pgfed(command, tmp_path)
        assert done.code == 2
        assert done.line.endswith(f"holds a federation; its run is {tmp_path / 'run'}")


def test_a_key_of_the_experiment_given_as_an_option(pgfed: Callable[..., Done]) -> None:
    done = pgfed("run", "--lr", 3)
    assert done.code == 2
    assert done.line.endswith(
        "No such option: --lr. For a key of the experiment: --set train.lr=VALUE."
    )
