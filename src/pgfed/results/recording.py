"""Run an experiment into a folder or in memory, and have its data model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pgfed.engine.callbacks import Observer
from pgfed.engine.environment import environment
from pgfed.engine.rounds import Run
from pgfed.engine.runs import Past, execute
from pgfed.engine.setup import Setup
from pgfed.engine.storage.start import Start
from pgfed.modules import NONE, Allowed
from pgfed.results.folder import layout
from pgfed.results.folder.jobs import Job, JobWriter
from pgfed.results.folder.layout import seed_folder
from pgfed.results.folder.writer import RunWriter, data_of, earlier
from pgfed.results.kept.models import Models, ModelsInFolder
from pgfed.results.kept.writing import ModelsInMemory
from pgfed.results.runs import Evidence, RunData, SeedRun, client_names, evidence_of, seed_run_of
from pgfed.results.statistics import Floats
from pgfed.results.summary import each_run

Kept = Mapping[tuple[str, int], Models]  # by method and seed


def record(
    setup: Setup,
    folder: Path | None,
    observers: Sequence[Observer] = (),
    *,
    resume: bool = False,
    only: Job | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> tuple[RunData, Kept]:
    """Run everything; with a folder the models are read back from it, without they are kept.

    ``resume``: go on with what the folder holds. ``only``: run this, in a folder that others fill
    with the rest. ``warn`` is told what is no error.
    """
    if folder is None:
        memory = InMemory(setup)
        execute(setup, [memory, *observers], memory)
        return memory.data, memory.models
    opened = (
        RunWriter(folder, setup, resume=resume, warn=warn)
        if only is None
        else JobWriter(folder, setup, only, warn=warn)
    )
    with opened as writer:
        execute(setup, [writer, *observers], writer, only)
        writer.finish()
    return writer.data, models_in(writer.data)


def models_in(data: RunData, allowed: Allowed = NONE) -> dict[tuple[str, int], Models]:
    """The models that a run folder holds."""
    found: dict[tuple[str, int], Models] = {}
    for run in each_run(data):
        folder = seed_folder(data.path, run.method, run.seed) / layout.MODELS
        if folder.is_dir():
            found[run.method, run.seed] = ModelsInFolder(folder, allowed)
    return found


class InMemory(Observer, Past):
    """Keeps what came out, and the models: of the best round where asked for, else of the last."""

    def __init__(self, setup: Setup) -> None:
        self.runs: dict[tuple[str, int], SeedRun] = {}
        self.models: dict[tuple[str, int], Models] = {}
        self._evidence: dict[tuple[str, int], tuple[Evidence, dict[str, Floats]]] = {}
        self._setup = setup
        self._earlier = earlier(setup, client_names(setup.federation))

    def start(self, method: str, seed: int) -> Start | None:
        return None if self._earlier is None else self._earlier.start(method, seed)

    def best(self, method: str, run: Run) -> None:
        self._evidence[method, run.seed] = evidence_of(run)
        if self._setup.keeps_models(run.seed):
            self.models[method, run.seed] = ModelsInMemory(run)

    def end(self, method: str, run: Run) -> None:
        key = method, run.seed
        if key not in self._evidence:
            self.best(method, run)
        self.runs[key] = seed_run_of(method, run, *self._evidence[key])

    @property
    def data(self) -> RunData:
        about = environment(self._setup.federation, self._setup.about_model())
        path = Path(self._setup.experiment.name)
        return data_of(self._setup, path, about, self.runs)
