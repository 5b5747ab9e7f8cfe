"""What a run folder holds, as items that are equal exactly if their bits are.

Reads the format of version 0.1 and the later one, in which an accuracy is a score, images are
samples, and clients are told by their names. It imports nothing of pgfed: what is compared must not
decide how it is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

Items = dict[str, str]  # what it is -> its bits: a number in full, or the hash of arrays
HASH = "sha256:"  # how a hash begins

# Of a record in history.jsonl: what it is, and its keys in 0.1 and later. Left out: seconds, and
# what a message takes beyond its payload, which is the wire's matter.
ALWAYS = {
    "mean accuracy": ("mean_accuracy", "mean_score"),
    "mean loss": ("mean_loss",),
    "bytes down": ("bytes_down",),
    "bytes up": ("bytes_up",),
    "bytes of scoring": ("bytes_eval",),
    "samples": ("images", "samples"),
}
SOMETIMES = {
    "clients' accuracies": ("client_accuracy", "client_score"),
    "validation": ("mean_validation_accuracy", "mean_validation_score"),
    "diverged": ("diverged",),
}
# What travels of a model had these keys where it was not all of it; now it is always the same.
RENAMED = {"body": "w", "head": "w"}
WHO = {"cohort": "cohort", "dropped": "dropped", "left out": "left_out"}


def read_run(folder: Path, document: Mapping[str, Any]) -> Items:
    """All methods and seeds of a run that has come to its end."""
    items: Items = {}
    for method in document["methods"]:
        for seed in document["seeds"]:
            place = folder / method / f"seed-{seed}"
            found = {**_history(place / "history.jsonl"), **_matrix(place / "alpha.npz")}
            if (place / "models").is_dir():
                found |= _models(place / "models")
            items |= {f"{method}, seed {seed}: {what}": bits for what, bits in found.items()}
    return items


def differences(old: Items, new: Items) -> list[str]:
    """One line for each item that is not the same."""
    return [
        f"{what}: {_difference(old.get(what), new.get(what))}"
        for what in dict.fromkeys([*old, *new])
        if old.get(what) != new.get(what)
    ]


def _difference(old: str | None, new: str | None) -> str:
    if old is None or new is None:
        return "only today" if old is None else "not there today"
    if old.startswith(HASH):
        return "other bits"
    return f"{old} in 0.1, {new} today"


# -- the history -------------------------------------------------------------------------------


def _history(path: Path) -> Items:
    items: Items = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        for what, value in _numbers(record).items():
            items[f"round {record['round']}: {what}"] = json.dumps(value, sort_keys=True)
    return items


def _numbers(record: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {what: _named(record[key]) for what, key in WHO.items()}
    for what, keys in ALWAYS.items():
        numbers[what] = next(record[key] for key in keys if key in record)
    for what, keys in SOMETIMES.items():
        for key in keys:
            if key in record:
                numbers[what] = _by_name(record[key])
    numbers["bytes by key"] = {
        direction: {RENAMED.get(key, key): size for key, size in sizes.items()}
        for direction, sizes in record["bytes_by_key"].items()
    }
    return numbers


def _named(clients: Iterable[Any]) -> list[str]:
    """The clients' names. Why one was dropped is put in words, and words may change."""
    return [str(c["client"] if isinstance(c, dict) else c) for c in clients]


def _by_name(value: Any) -> Any:
    """Numbers in the order of the clients as numbers by the clients' names."""
    return {str(i): x for i, x in enumerate(value)} if isinstance(value, list) else value


# -- arrays ------------------------------------------------------------------------------------


def _matrix(path: Path) -> Items:
    if not path.is_file():
        return {}
    with np.load(path, allow_pickle=False) as arrays:
        return {f"A: {k}": _hash({k: arrays[k]}) for k in ("alpha", "start", "meetings")}


def _models(folder: Path) -> Items:
    """Each client's model in the file that the manifest says, and the global one."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    rows = [(row.get("client", row.get("name")), row["file"]) for row in manifest["clients"]]
    files = {f"client {client}'s model": file for client, file in rows}
    files["global model"] = manifest["global"]["file"]
    hashes = {name: _hash(load_file(folder / name)) for name in set(files.values())}
    items = {what: hashes[name] for what, name in files.items()}
    return {"round of the models": str(manifest["round"]), **items}


def _hash(arrays: Mapping[str, np.ndarray]) -> str:
    """Of names, types, shapes and every bit."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return HASH + digest.hexdigest()
