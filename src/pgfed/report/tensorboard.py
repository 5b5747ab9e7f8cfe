"""`--tensorboard`: the rounds of a run as TensorBoard reads them, while they happen.

RUN/tensorboard/METHOD/seed-K/ is a run of TensorBoard's. A run that goes on takes its earlier
rounds over into a new event file, so that the images in them stay; rounds that were run without
`--tensorboard` are told from the history, and rounds that are run again are left behind.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pgfed.engine.callbacks import Callback, Record
from pgfed.engine.rounds import Run
from pgfed.engine.setup import Setup
from pgfed.errors import UserError
from pgfed.methods.registry import BASELINE
from pgfed.report.figures.specification import DIVERGING, GAP, MAX_CLIENTS
from pgfed.results import statistics as stats
from pgfed.results.folder.layout import seed_folder
from pgfed.results.statistics import Floats

FOLDER = "tensorboard"  # in the run folder
IMAGE = 400  # pixels that the matrix A has at least
LAST_TAG = "seconds/round"  # a round that has it is complete
BINS = np.linspace(0, 1, 21)  # of scores that lie between 0 and 1


class TensorBoard(Callback):
    """Writes event files; ``folder`` is the run's."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        self._writers = _module("torch.utils.tensorboard")
        self._loaders = _module("tensorboard.backend.event_processing.event_file_loader")
        self._setup = setup
        self._folder = folder / FOLDER
        self._order = np.argsort(-setup.federation.n_train, kind="stable")
        self._honest = np.ones(len(setup.federation), dtype=np.bool_)
        self._alone: dict[tuple[int, int], Floats] = {}  # seed and round: Local's scores
        self._method, self._seed = "", 0
        self._run: Run | None = None
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # First forgotten, then closed: an interrupted close is not tried a second time.
        writer, self._writer, self._run = self._writer, None, None
        if writer is not None:
            writer.close()

    # -- a callback ----------------------------------------------------------------------------

    def begin(self, method: str, run: Run) -> None:
        self._run = run
        self._open(method, run.seed, run.history, run.attackers)

    def skip(self, method: str, seed: int, history: list[Record]) -> None:
        attack, clients = self._setup.attack, len(self._setup.federation)
        attackers = attack.attackers(seed, clients) if attack else frozenset()
        self._open(method, seed, history, attackers)
        self.__exit__()

    def round(self, method: str, run: Run, record: Record) -> None:
        assert self._run is not None, "begin() comes before round()"
        self._write(record, self._run)
        self._writer.flush()

    def end(self, method: str, run: Run) -> None:
        self.__exit__()

    # -- event files ---------------------------------------------------------------------------

    def _open(
        self, method: str, seed: int, history: list[dict[str, Any]], attackers: frozenset[int]
    ) -> None:
        """One new event file: the rounds of the history, as they were written or from it."""
        self._method, self._seed = method, seed
        self._honest[:] = True
        self._honest[sorted(attackers)] = False
        folder = seed_folder(self._folder, method, seed)
        old = sorted(folder.glob("events.out.tfevents.*"))
        known = self._read(old)
        self._writer = self._writers.SummaryWriter(str(folder))
        for record in history:
            if method == BASELINE:
                self._remember(record["round"], _scores(record))
            events = known.get(record["round"], {})
            if LAST_TAG in events:
                for event in events.values():
                    self._writer.file_writer.add_event(event, event.step, event.wall_time)
            else:
                self._write(record, None)
        self._writer.flush()
        for path in old:
            path.unlink()

    def _read(self, paths: list[Path]) -> dict[int, dict[str, Any]]:
        """Round -> tag -> event."""
        found: dict[int, dict[str, Any]] = {}
        for path in paths:
            for event in self._loaders.LegacyEventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    found.setdefault(event.step, {})[value.tag] = event
        return found

    def _write(self, record: dict[str, Any], run: Run | None) -> None:
        """One round; ``run``: as it is right after it, None when told from the history."""
        t = record["round"]
        scored = record["mean_score"] is not None
        scores = run.score if run is not None and scored else _scores(record)
        scalars = {
            "score/mean": record["mean_score"],
            "score/validation": record.get("mean_validation_score"),
            "loss/mean": record["mean_loss"],
            "bytes/down": record["bytes_down"],
            "bytes/up": record["bytes_up"],
            "clients/asked": len(record["cohort"]),
            "clients/counted": len(
                set(record["cohort"]) - {drop["client"] for drop in record["dropped"]}
            ),
            "speed/samples_per_second": record["samples"] / max(record["train_seconds"], 1e-9),
        }
        if scores is not None:
            scalars |= self._of_clients(t, scores)
        if run is not None and scored:
            scalars |= self._matrix(t, run.alpha())
        for tag, value in {**scalars, LAST_TAG: record["seconds"]}.items():
            if value is not None:
                self._writer.add_scalar(tag, value, t)

    def _of_clients(self, t: int, scores: Floats) -> dict[str, float]:
        """The histogram of the clients' scores; what else is known of them."""
        if self._method == BASELINE:
            self._remember(t, scores)
        honest = self._honest
        known = honest & ~np.isnan(scores)
        if not known.any():
            return {}
        metric = self._setup.objective.primary
        bins: Any = BINS if metric.bounded else "auto"
        self._writer.add_histogram("score/clients", scores[known], t, bins=bins)
        worst = metric.sign * stats.worst_tenth(metric.sign * scores[known])
        found = {"score/worst_tenth": worst}
        alone = self._alone.get((self._seed, t))
        if alone is not None and self._method != BASELINE:
            gain = stats.individual_gain(
                metric.sign * scores[None, honest], metric.sign * alone[None, honest]
            )
            found |= {
                "gain/mean": gain.mean,
                "gain/worst_tenth": gain.worst_decile,
                "gain/clients_harmed": gain.harmed,
            }
        return found

    def _remember(self, t: int, scores: Floats | None) -> None:
        if scores is not None:
            self._alone[self._seed, t] = scores.copy()

    def _matrix(self, t: int, alpha: dict[str, Any] | None) -> dict[str, float]:
        """The change of A as an image, clients by size; and what its colours mean."""
        if alpha is None:
            return {}
        pairs = stats.Pairs.read(alpha)
        size = -(-pairs.clients // MAX_CLIENTS)
        change = pairs.blocks(self._order, size)
        bound = pairs.scale(change)
        self._writer.add_image("A", picture(change / bound), t, dataformats="HWC")
        return {
            "A/colour_bound": bound,
            "A/rose": float((pairs.change > 0).sum()) / pairs.clients**2,
            "A/at_zero": float((pairs.change == -pairs.start).sum()) / pairs.clients**2,
        }


def picture(change: Floats) -> NDArray[np.uint8]:
    """Changes from -1 to 1 in the report's colours, grey where there is none."""
    places = np.linspace(-1, 1, len(DIVERGING))  # they are evenly spaced
    colours = np.array([_rgb(str(colour)) for _, colour in DIVERGING])
    pixels = np.stack([np.interp(change, places, channel) for channel in colours.T], axis=-1)
    pixels[change == 0] = _rgb(GAP)
    larger = -(-IMAGE // len(change))
    return pixels.round().astype(np.uint8).repeat(larger, axis=0).repeat(larger, axis=1)


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour.removeprefix("#")))


def _scores(record: dict[str, Any]) -> Floats | None:
    """Per client, where the history has them."""
    found = record.get("client_score")
    return None if found is None else np.array(found, dtype=np.float64)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(
            "--tensorboard: TensorBoard is not installed; pip install 'pgfed[tensorboard]'"
        ) from None
