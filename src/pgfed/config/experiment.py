"""The experiment file: what is run, on which data, with which settings.

Every key has a default; the defaults together are the built-in experiment. Importing this module
does not import torch.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgfed.config.schema import check, shown
from pgfed.config.tables import BASE, DEFAULT_COHORT, Experiment
from pgfed.data import READERS
from pgfed.data.files import toml
from pgfed.errors import NOTES, UserError, unknown
from pgfed.methods import registry as algorithms
from pgfed.modules import Allowed

if TYPE_CHECKING:
    from pgfed.methods.contract import Algorithm

LAST = 10  # rounds, the last ones, that are always scored
FILE = "experiment.toml"  # in a run folder
MAX_FILE = 1_000_000  # bytes; a file beyond this is not an experiment
IN_MEMORY = "memory"  # data.dataset of a run on arrays that were passed from Python


def of_run(folder: Path) -> Experiment:
    """The experiment of a run folder."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give the folder of a run")
    if not (folder / FILE).is_file():
        raise UserError(f"{folder}: not a run folder (it holds no {FILE})")
    if (folder / "federation.toml").is_file():
        raise UserError(f"{folder}: holds a federation; its run is {folder / 'run'}")
    return load(folder / FILE)


def to_go_on(folder: Path, allowed: Allowed) -> Experiment:
    """The experiment of a run folder, to be run: it names no module that is not allowed."""
    experiment = of_run(folder)
    check_modules(experiment, folder / FILE, allowed)
    return experiment


def check_modules(experiment: Experiment, file: Path, allowed: Allowed) -> None:
    """Refuse an experiment of others that would import what is not allowed."""
    for key, name in own_names(experiment):
        allowed.check(key, name, file)


def own_names(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Each ``package.module:Name`` that running the experiment imports, with its key."""
    if ":" in (experiment.model.name or ""):
        yield "model.name", str(experiment.model.name)
    if ":" in experiment.task.kind:
        yield "task.kind", experiment.task.kind
    for at, table in {"train": {"augment": experiment.train.augment}, **experiment.method}.items():
        if ":" in str(table.get("augment", "")):
            yield "train.augment" if at == "train" else f"method.{at}.augment", table["augment"]
    for name in experiment.output.callbacks:
        if ":" in name:
            yield "output.callbacks", name
    for name in dict.fromkeys(map(experiment.base, [*experiment.methods, *experiment.method])):
        if ":" in name:
            yield "methods", name


def data_root(given: str | Path | None) -> Path:
    """Where the data sets' files lie: as given, else $PGFED_DATA, else ./data."""
    return Path(given or os.environ.get("PGFED_DATA") or "data").expanduser()


def load(path: Path | None, overrides: Sequence[str] = (), *, smoke: bool = False) -> Experiment:
    """Read an experiment file, or take the built-in experiment, and apply `--set key=value`.

    ``smoke`` makes it small before that: the same methods and settings in about ten seconds.
    """
    content: dict[str, Any] = {}
    if path is not None and str(path).partition(":")[0] in READERS and not path.exists():
        raise UserError(
            f"{path}: found data; allowed: an experiment file, or --set data.dataset={path}"
        )
    if path is not None:
        content = {"format": 1, **toml.read(path, MAX_FILE, "an experiment file")[0]}
    if path is not None and "name" not in content:
        content["name"] = _folder_name(path.stem)
    if smoke:
        content = _small(from_dict(content))
        if path is None:
            del content["name"]  # an override may name the data that names it
    for override in overrides:
        _apply(content, override)
    experiment = from_dict(content)
    if smoke and "name" not in content:
        return replace(experiment, name=_smoke(experiment.name))
    return experiment


def from_dict(content: Mapping[str, Any]) -> Experiment:
    """Check everything that can be checked without the data and without loading a method."""
    experiment = check(Experiment, content)
    known = {*algorithms.NAMES, *map(algorithms.folder, experiment.methods)}
    for name, table in experiment.method.items():
        if name not in known and BASE not in table:
            raise unknown("method", name, known)
    if experiment.format == 1 and experiment.cohort is None:  # 0.1 did not look at the data
        experiment = replace(experiment, cohort=DEFAULT_COHORT)
    if experiment.format == 1 and "methods" not in content:  # it did not have `alone`
        methods = [name for name in experiment.methods if name != algorithms.ALONE]
        experiment = replace(experiment, methods=methods)
    if experiment.format == 1:  # 0.1 drew each split at random, by the client's number
        old: dict[str, Any] = {"stratify": False, "draws": "by-number"}
        own = {key: old[key] for key in old if key not in content.get("data", {})}
        experiment = replace(experiment, data=replace(experiment.data, **own))
    if "name" not in content:
        name = _data_name(experiment.data.dataset)
        experiment = replace(experiment, name=name)
    return experiment


def _data_name(dataset: str) -> str:
    """What an experiment on this data is called, unless it has a name."""
    kind, _, path = dataset.partition(":")
    if kind not in READERS:
        return _folder_name(dataset)
    # Absolute, since `folder:.` has a name, too.
    name = os.path.basename(os.path.abspath(os.path.expanduser(path)))
    return _folder_name(name.removesuffix(f".{kind}"))


def _folder_name(text: str) -> str:
    """The text as far as `check_folder` lets it pass."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:100] or "experiment"


def make_methods(experiment: Experiment) -> tuple[dict[str, Algorithm], Experiment]:
    """folder -> method, and the experiment with every field of the methods it runs spelled out."""
    from pgfed.config.settings import PERSONAL, PLAIN, make, with_general

    made: dict[str, Algorithm] = {}
    tables: dict[str, dict[str, Any]] = {}
    skipped: dict[str, dict[str, str]] = {}  # key of [personal] -> method -> why
    run = {algorithms.folder(name): name for name in experiment.methods}
    # A table of a method that is not run is checked too: a misspelt key in it is still a mistake.
    for folder in [*run, *(name for name in experiment.method if name not in run)]:
        base = experiment.base(run.get(folder, folder))
        table = experiment.method.get(folder, {})
        own = {}
        if BASE in table:  # a variant differs from its base in what its table says, and only there
            own = {BASE: base}
            general = experiment.method.get(algorithms.folder(base), {})
            both = [t[PERSONAL] for t in (general, table) if isinstance(t.get(PERSONAL), dict)]
            table = {**general, **table}
            if len(both) == 2:
                table[PERSONAL] = both[0] | both[1]
            del table[BASE]
        method, complete = make(algorithms.get(base), table, experiment.train, f"method.{folder}")
        if folder in run:
            said = table.get(PERSONAL, {})
            method, without = with_general(method, experiment.personal, said)
            for key, reason in without.items():
                skipped.setdefault(key, {})[folder] = reason
            if said or experiment.personal != PLAIN or method.usual() != PLAIN:
                complete[PERSONAL] = asdict(method.personal)
            made[folder], tables[folder] = method, {**own, **complete}
            if method.plain_sgd and method.train.optimizer != "sgd":
                NOTES.warning(
                    f"{folder}: was derived for SGD ({method.plain_sgd}), and runs with "
                    f"{method.train.optimizer}"
                )
    _say_skipped(skipped, made)
    apart = [name for name, m in made.items() if m.role == "method" and not m.averages]
    if experiment.server.optimizer != "none" and apart:
        NOTES.warning(
            f"server.optimizer = {experiment.server.optimizer!r} is not for {', '.join(apart)}: "
            "there the server's model is not the mean of a round's models"
        )
    return made, replace(experiment, method=tables)


def _say_skipped(skipped: Mapping[str, Mapping[str, str]], methods: dict[str, Algorithm]) -> None:
    """For whom a key of [personal] makes no sense; of baselines nobody would expect it."""
    for key, reasons in skipped.items():
        by_reason: dict[str, list[str]] = {}
        for name, reason in reasons.items():
            if methods[name].role == "method":
                by_reason.setdefault(reason, []).append(name)
        if by_reason:
            text = "; ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items())
            NOTES.warning(f"personal.{key}: not for {text}")
    unseen = [
        name
        for name, method in methods.items()
        if method.personal.frame == "serving"
        and method.personal_from == "own"
        and method.personal.blend == 1
    ]
    if unseen:
        NOTES.warning(
            "personal.frame: 'serving' corrects the global side of a blend, and with "
            f"personal.blend = 1 there is none: nothing changes for {', '.join(unseen)}"
        )


def _smoke(name: str) -> str:
    return f"{name[:90]}-smoke"


def _small(experiment: Experiment) -> dict[str, Any]:
    """The experiment on built-in data, with few clients and rounds: everything still happens."""
    content = {**experiment.document(), "sweep": experiment.sweep}
    domains = experiment.data.partition == "domain"
    content["name"] = _smoke(experiment.name)
    # The fewer methods, the more rounds: pairs of clients meet, and it takes as long.
    content["rounds"] = min(experiment.rounds, max(4, min(48 // len(experiment.methods), 10)))
    content["seeds"] = experiment.seeds[:2]
    content["data"] |= {
        "dataset": "digits-styles" if domains else "digits",
        "clients": 8 if domains else 12,
        "test_share": 0.7,  # few samples to train on: quick; many to test on: steady
        "min_samples": 40,
    }
    content["output"]["models"] = "last"
    if experiment.data.partition == "given":
        content["data"]["partition"] = "dirichlet"
    content["data"].pop("image_size", None)
    if experiment.model.name == "cnn":  # the images are too small for it
        del content["model"]["name"]
    return content


def _apply(content: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *tables, leaf = [part.strip() for part in key.split(".")]
    if not equals or not leaf or not all(tables):
        raise UserError(f"--set: found {shown(override)}; allowed: key=value or table.key=value")
    for depth, table in enumerate(tables):
        inner = content.setdefault(table, {})
        if not isinstance(inner, dict):
            raise UserError(f"--set {key.strip()}: {'.'.join(tables[: depth + 1])!r} is no table")
        content = inner
    content[leaf] = toml_value(text)


def toml_value(text: str) -> Any:
    """A TOML value; what does not parse is a string."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if list(parsed) == ["value"] else text
