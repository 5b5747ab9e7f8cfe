"""Where a run begins that goes on from an earlier one: with each client's own model, by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from pgfed.config import experiment as experiments
from pgfed.engine.storage.durable import sha256
from pgfed.engine.storage.start import Start
from pgfed.errors import NOTES, UserError
from pgfed.model.task import Task
from pgfed.results.folder import layout
from pgfed.results.kept import manifest as manifests
from pgfed.results.kept.models import ModelsInFolder


class Earlier:
    """The run to start from."""

    def __init__(self, path: Path, names: Sequence[str], classes: Sequence[str]) -> None:
        self._path, self._names, self._classes = path, names, classes
        self._seeds = experiments.of_run(path).seeds

    def start(self, method: str, seed: int) -> Start | None:
        """Of the same seed, or of the first; None where the method was not in that run."""
        folder = self._models(method, seed)
        if folder is None:
            NOTES.warning(f"{method}: not among the models of {self._path}; it starts afresh")
            return None
        kept = ModelsInFolder(folder)
        _check_classes(kept.manifest, self._classes)
        return _FromModels(kept, self._names)

    def _models(self, method: str, seed: int) -> Path | None:
        chosen = seed if seed in self._seeds else self._seeds[0]
        folder = layout.seed_folder(self._path, method, chosen) / layout.MODELS
        return folder if (folder / manifests.NAME).is_file() else None

    def digests(self, methods: Sequence[str], seeds: Sequence[int]) -> dict[str, str]:
        """What the manifests held: a run that goes on must start from the same."""
        found = {}
        for method in methods:
            for seed in seeds:
                folder = self._models(method, seed)
                if folder is not None:
                    data = (folder / manifests.NAME).read_bytes()
                    found[f"{method}/{seed}"] = sha256(data)
        return found


class _FromModels(Start):
    def __init__(self, kept: ModelsInFolder, names: Sequence[str]) -> None:
        self._kept, self._names = kept, names
        self._ids = {row.client: row.id for row in kept.manifest.clients if row.file is not None}

    def shared(self, task: Task) -> Tensor:
        return _flat(task, self._kept.shared(), self._kept)

    def personal(self, task: Task, client: int) -> Tensor | None:
        number = self._ids.get(self._names[client])
        if number is None:
            return None
        return _flat(task, self._kept.personal(number), self._kept)


def _check_classes(kept: manifests.Manifest, classes: Sequence[str]) -> None:
    """An output that meant another class before would begin with what was learned of that one."""
    if kept.classes == list(classes):
        return
    new = [name for name in classes if name not in kept.classes]
    gone = [name for name in kept.classes if name not in classes]
    parts = [f"new here: {', '.join(new)}"] if new else []
    parts += [f"missing here: {', '.join(gone)}"] if gone else []
    raise UserError(
        f"--start-from: the models of {kept.method} have an output for each of "
        f"{', '.join(kept.classes)}; {'; '.join(parts) or 'here they are in another order'}; "
        "allowed: the same (class_names in arrays and classes in a schema name all there are)"
    )


def _flat(task: Task, values: dict[str, Tensor], kept: ModelsInFolder) -> Tensor:
    try:
        return task.flat(values)
    except (KeyError, RuntimeError) as error:
        raise UserError(
            f"--start-from: the models of {kept.manifest.method} are not of this run's model "
            f"({kept.manifest.model}, inputs {kept.manifest.shape}): {error}"
        ) from None
