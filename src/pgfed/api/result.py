"""What a run gave: the verdict, tables, histories, models, predictions, figures, the page."""

from __future__ import annotations

import contextlib
import html
import importlib
import io
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pgfed.api.predictions import Predictions, predictions_of
from pgfed.config import experiment as experiments
from pgfed.data.federation import Federation
from pgfed.engine.objective import make_objective
from pgfed.engine.setup import Setup, load_federation
from pgfed.engine.storage.durable import write_atomic
from pgfed.errors import UserError, unknown
from pgfed.methods import registry as algorithms
from pgfed.modules import NONE, Allowed, allowed
from pgfed.results.comparison import Group, group
from pgfed.results.folder import layout
from pgfed.results.folder.evidence import read_evidence
from pgfed.results.folder.layout import choose_client, seed_folder
from pgfed.results.folder.reader import load
from pgfed.results.formats import count, gain, score
from pgfed.results.kept.models import Models, ModelsInFolder, not_kept
from pgfed.results.recording import Kept, models_in
from pgfed.results.runs import RunData, SeedRun
from pgfed.results.summary import client_rows, each_run, gain_of_run, summaries
from pgfed.results.verdict import Verdict, judge

GAINED = ("clients_gained", "clients_harmed")
Table = Any  # a pandas DataFrame, or a list of dictionaries where pandas is not installed


def open(
    path: str | Path,
    *,
    data_root: str | Path | None = None,
    allow_modules: Sequence[str] = (),
) -> Result:
    """What `run` gave, from its folder; methods that have not finished are left out.

    A model of one's own, ``package.module:factory``, is imported, when it is asked for, only if
    ``allow_modules`` holds its module.
    """
    data = load(Path(path).expanduser())
    trusted = allowed(allow_modules)
    models = models_in(data, trusted)
    root = experiments.data_root(data_root)
    return Result(data, models, folder=data.path, data_root=root, allowed=trusted)


class Result:
    """What a run gives: the verdict, tables, histories, models, predictions, figures, the page.

    Tables are pandas DataFrames where pandas is installed, otherwise lists of dictionaries.
    Without a seed, the first one is meant.
    """

    # What completion offers, and what is promised.
    _PUBLIC = (
        "alpha", "clients", "experiment", "federation", "folder", "global_model", "history",
        "model", "plot_curves", "plot_gains", "predictions", "report", "summary", "table",
        "verdict",
    )  # fmt: skip

    def __init__(
        self,
        data: RunData,
        models: Kept,
        *,
        folder: Path | None = None,
        setup: Setup | None = None,
        data_root: Path | None = None,
        allowed: Allowed = NONE,
    ) -> None:
        self.data = data
        self.folder = folder  # None: it was run in memory
        self.experiment = data.experiment
        self._models = models
        self._setup = setup
        self._data_root = data_root
        self._allowed = allowed

    def __dir__(self) -> list[str]:
        return sorted(self._PUBLIC)

    def __repr__(self) -> str:
        e = self.experiment
        about = ", ".join(
            [
                count(len(self.data.clients), "client"),
                count(len(e.methods), "method"),
                count(len(e.seeds), "seed"),
                count(e.rounds, "round"),
            ]
        )
        return f"<pgfed.Result {e.name}: {about}. {self.verdict}>"

    def _repr_html_(self) -> str:
        """For notebooks: the verdict over a small table."""
        metric, judged = self.data.metric, self.verdict.judged
        over = f"gain over {self._group.over}"
        head = ["method", "seed", metric.title, over, "clearly gained", "clearly lost"]
        alone = {name for name, about in self.data.methods.items() if about.role == "baseline"}
        rows = [
            [
                line["method"],
                line["seed"],
                score(line["final_score"], metric),
                "" if line["gain_mean"] is None or own else gain(line["gain_mean"], metric),
                *("" if line[key] is None or own or not judged else line[key] for key in GAINED),
            ]
            for line in self.summary
            for own in [line["method"] in alone]
        ]
        said = "".join(f"<p>{html.escape(line)}</p>" for line in self.verdict.lines[1:])
        return (
            f"<div><p><strong>{html.escape(str(self.verdict))}</strong></p>{said}"
            f"<table><thead>{_row(head, 'th')}</thead>"
            f"<tbody>{''.join(_row(row, 'td') for row in rows)}</tbody></table></div>"
        )

    @cached_property
    def _group(self) -> Group:
        (found,) = group([self.data])
        return found

    @cached_property
    def verdict(self) -> Verdict:
        """Did federating help? ``str()`` of it is the sentence that `pgfed run` prints first."""
        return judge(self._group)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the page, by default to report.html in the run folder; where it is."""
        from pgfed.report.rendering import possible, render

        if path is None and self.folder is None:
            raise UserError("report: the run has no folder; say where to: report('page.html')")
        if not possible():
            raise UserError("report: needs plotly and jinja2; pip install 'pgfed[report]'")
        place = (self.folder or Path()) / "report.html" if path is None else Path(path)
        text = render([self._group])
        try:
            write_atomic(place.expanduser(), text)
        except OSError as error:
            raise UserError(f"{place}: cannot be written ({error.strerror or error})") from None
        return place

    def plot_gains(self) -> Any:
        """Who gained how much, as a matplotlib figure; `savefig` keeps it."""
        return self._figure("gains")

    def plot_curves(self) -> Any:
        """Scores over rounds and over bytes sent, as a matplotlib figure."""
        return self._figure("curves")

    def _figure(self, name: str) -> Any:
        from pgfed.report.images.runs import draw

        figure = draw(name, self._group)
        if figure is None:
            raise UserError(f"plot_{name}: there is no baseline (local or alone) to gain over")
        figure._repr_png_ = lambda: _png(figure)  # notebooks show it, without pyplot
        return figure

    @cached_property
    def federation(self) -> Federation:
        """The clients' data; of a run that was opened, read again."""
        if self._setup is not None:
            return self._setup.federation
        return load_federation(self.experiment, experiments.data_root(self._data_root))[0]

    @property
    def runs(self) -> list[SeedRun]:
        """By method, then by seed."""
        return list(each_run(self.data))

    @property
    def summary(self) -> list[dict[str, Any]]:
        """As summary.json: one dictionary per method and seed."""
        return summaries(self.data)

    def table(self) -> Table:
        """The summary as a table: one row per method and seed."""
        return _frame(self.summary)

    def clients(self, method: str | None = None, seed: int | None = None) -> Table:
        """One row per client: sizes, scores, gain over training alone, every metric.

        Without a method those of all methods, each with its name in front.
        """
        if method is not None:
            return _frame(self._client_rows(method, seed))
        rows = [
            {"method": name, **row}
            for name in self.data.runs
            for row in self._client_rows(name, seed)
        ]
        return _frame(rows)

    def _client_rows(self, method: str, seed: int | None) -> list[dict[str, Any]]:
        run, data = self._run(method, seed), self.data
        return client_rows(run, gain_of_run(data, run), data.clients)

    def predictions(
        self, client: int | str, method: str = "pgfed", seed: int | None = None
    ) -> Predictions:
        """What the client's kept model gave for each of its test samples, and what was right."""
        run, data = self._run(method, seed), self.data
        number = choose_client(data.clients.names, client)
        evidence = run.evidence
        if self.folder is not None:
            file = seed_folder(self.folder, run.method, run.seed) / layout.EVIDENCE
            evidence = read_evidence(file, len(data.clients), outputs=True)
        kind = self.experiment.task.kind
        if self._setup is None:
            self._allowed.check("task.kind", kind, data.path / layout.EXPERIMENT)
        names = list(data.clients.class_names)
        objective = make_objective(self.experiment.task, names)
        return predictions_of(evidence, number, data.clients.names[number], objective, names)

    def history(self, method: str, seed: int | None = None) -> Table:
        """One row per round."""
        return _frame(self._run(method, seed).history.records)

    def alpha(self, method: str = "pgfed", seed: int | None = None) -> Any:
        """The learned matrix A (N x N; the parts of a CSR matrix above 2,000 clients)."""
        alpha = self._run(method, seed).matrix
        if alpha is None:
            raise UserError(f"{method} learns no matrix; allowed: the methods of the PGFed family")
        return alpha.get("alpha", alpha)

    def model(self, client: int | str, method: str = "pgfed", seed: int | None = None) -> nn.Module:
        """The personalized model of a client, by its number or its name; in evaluation mode."""
        number = choose_client(self.data.clients.names, client)
        kept = self._kept(method, seed)
        return self._module(kept, kept.personal(number))

    def global_model(self, method: str = "pgfed", seed: int | None = None) -> nn.Module:
        """The model a new client starts from, in evaluation mode."""
        kept = self._kept(method, seed)
        return self._module(kept, kept.shared())

    def _run(self, method: str, seed: int | None) -> SeedRun:
        name = algorithms.folder(method)
        if name not in self.data.runs:
            raise unknown("method", method, self.data.runs)
        runs = self.data.runs[name]
        wanted = next(iter(runs)) if seed is None else seed
        if wanted not in runs:
            raise UserError(f"seed: found {seed}; allowed: {', '.join(map(str, runs))}")
        return runs[wanted]

    def _kept(self, method: str, seed: int | None) -> Models:
        run = self._run(method, seed)
        if (run.method, run.seed) not in self._models:
            raise not_kept(run.method, run.seed)
        return self._models[run.method, run.seed]

    def _module(self, kept: Models, state: dict[str, torch.Tensor]) -> nn.Module:
        if self._setup is not None:
            federation, make = self._setup.federation, self._setup.model
            shape, classes = federation.input_shape, len(federation.class_names)
        else:
            assert isinstance(kept, ModelsInFolder), "what was opened lies in a folder"
            about, make = kept.manifest, kept.factory()
            shape, classes = about.shape, len(about.classes)
        with torch.random.fork_rng(devices=[]):  # the values it starts with are replaced
            module = make(shape, classes)
        module.load_state_dict(state)
        return module.eval()


def _row(cells: Sequence[object], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(str(cell))}</{tag}>' for cell in cells)}</tr>"


def _png(figure: Any) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    return content.getvalue()


def _frame(rows: list[dict[str, Any]]) -> Table:
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.import_module("pandas").DataFrame(rows)
    return rows
