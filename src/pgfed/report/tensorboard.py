"""`--tensorboard`: a callback that writes event files as TensorBoard reads them, round by round.

RUN/tensorboard/METHOD/seed-K/ is a run of TensorBoard's. A run that goes on takes its earlier
rounds over into a new event file, so that the images in them stay; rounds that were run without
`--tensorboard` are told from the history, and rounds that are run again are left behind.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgfed.engine.callbacks import Callback, Record, Running
from pgfed.errors import UserError
from pgfed.methods.registry import BASELINE
from pgfed.report.figures.colours import DIVERGING, NEVER_MET
from pgfed.report.figures.specification import MAX_CLIENTS
from pgfed.results import statistics as stats
from pgfed.results.folder.layout import seed_folder
from pgfed.results.statistics import Floats

FOLDER = "tensorboard"  # in the run folder
IMAGE = 400  # pixels that the matrix A has at least
LAST_TAG = "seconds/round"  # a round that has it is complete
BINS = np.linspace(0, 1, 21)  # of scores that lie between 0 and 1


class TensorBoard(Callback):
    """Writes event files into the run folder."""

    def __init__(self) -> None:
        self._writers = _module("torch.utils.tensorboard")
        self._loaders = _module("tensorboard.backend.event_processing.event_file_loader")
        self._alone: dict[tuple[int, int], Floats] = {}  # seed and round: Local's scores
        self._writer: Any = None

    # -- a callback ----------------------------------------------------------------------------

    def begin(self, run: Running) -> None:
        self._open(run)

    def skip(self, run: Running) -> None:
        self._open(run)
        self.close()

    def round(self, run: Running, record: Record) -> None:
        scored = record["mean_score"] is not None
        self._write(run, record, run.scores() if scored else None, now=True)
        self._writer.flush()

    def end(self, run: Running) -> None:
        self.close()

    def close(self) -> None:
        # First forgotten, then closed: an interrupted close is not tried a second time.
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    # -- event files ---------------------------------------------------------------------------

    def _open(self, run: Running) -> None:
        """One new event file: the rounds of the history, as they were written or from it."""
        if run.folder is None:
            raise UserError("callbacks: tensorboard needs a run folder to write to; say out=DIR")
        folder = seed_folder(run.folder / FOLDER, run.method, run.seed)
        old = sorted(folder.glob("events.out.tfevents.*"))
        known = self._read(old)
        self._writer = self._writers.SummaryWriter(str(folder))
        for record in run.history:
            if run.method == BASELINE:
                self._remember(run, record["round"], _scores(record))
            events = known.get(record["round"], {})
            if LAST_TAG in events:
                for event in events.values():
                    self._writer.file_writer.add_event(event, event.step, event.wall_time)
            else:
                self._write(run, record, _scores(record))
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

    def _write(
        self, run: Running, record: Record, scores: Floats | None, *, now: bool = False
    ) -> None:
        """One round; ``now``: the run is as it is right after it."""
        t = record["round"]
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
            scalars |= self._of_clients(run, t, scores)
        if now and scores is not None:
            scalars |= self._matrix(run, t)
        for tag, value in {**scalars, LAST_TAG: record["seconds"]}.items():
            if value is not None:
                self._writer.add_scalar(tag, value, t)

    def _of_clients(self, run: Running, t: int, scores: Floats) -> dict[str, float]:
        """The histogram of the clients' scores; what else is known of them."""
        if run.method == BASELINE:
            self._remember(run, t, scores)
        honest = ~np.isin(np.arange(len(run.clients)), sorted(run.attackers))
        known = honest & ~np.isnan(scores)
        if not known.any():
            return {}
        metric = run.metric
        bins: Any = BINS if metric.bounded else "auto"
        self._writer.add_histogram("score/clients", scores[known], t, bins=bins)
        worst = metric.sign * stats.worst_tenth(metric.sign * scores[known])
        found = {"score/worst_tenth": worst}
        alone = self._alone.get((run.seed, t))
        if alone is not None and run.method != BASELINE:
            gain = metric.sign * (scores[honest] - alone[honest])
            gain = gain[~np.isnan(gain)]
            found |= {
                "gain/mean": stats.mean_std(gain)[0],
                "gain/worst_tenth": stats.worst_tenth(gain),
            }
        return found

    def _remember(self, run: Running, t: int, scores: Floats | None) -> None:
        if scores is not None:
            self._alone[run.seed, t] = scores.copy()

    def _matrix(self, run: Running, t: int) -> dict[str, float]:
        """The change of A as an image, clients by size; and what its colours mean."""
        alpha = run.matrix()
        if alpha is None:
            return {}
        pairs = stats.Pairs.read(alpha)
        size = -(-pairs.clients // MAX_CLIENTS)
        change = pairs.blocks(np.argsort(-run.n_train, kind="stable"), size)
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
    pixels[change == 0] = _rgb(NEVER_MET)
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
