"""Several personal models from one training: frames and blends need none of their own.

    python experiments/beyond/several.py EXPERIMENT.toml --at 5,10,15 --out FILE.jsonl

Runs every method of the experiment and writes one line for each seed, method, way to make a
personal model, and round of --at: every client's score on its test data. `fedavg-local`, which
keeps the last own model, is also scored as its newest global model and as blends of the two:
without a frame (`plain`), in the frame that it was trained in (`framed`), and corrected to the
client's class shares (`served`). A training whose lines are there is not run again;
`several_table.py` reads the file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pgfed.config.experiment import data_root, load
from pgfed.engine.callbacks import Observer, Record
from pgfed.engine.client import one_thread
from pgfed.engine.rounds import Run
from pgfed.engine.runs import run_method
from pgfed.engine.setup import Setup, prepare
from pgfed.model import frames

BLENDS = (0.3, 0.5, 0.7)  # shares of the own model


class Scores(Observer):
    """Scores every way after some rounds of a training."""

    def __init__(self, setup: Setup, at: list[int], out: Path) -> None:
        self.setup, self.at, self.out = setup, at, out

    def round(self, method: str, run: Run, record: Record) -> None:
        print(f"{method} {run.seed} round {run.round}: {record['mean_score']}", flush=True)
        if run.round not in self.at:
            return
        found: dict[str, list[float]] = {"as it is": run.score.tolist()}
        algorithm = run.algorithm
        if algorithm.personal_from == "own" and algorithm.name == "fedavg-local":
            with one_thread():
                found |= several(run)
        sent = sum(r["bytes_down"] + r["bytes_up"] for r in run.history)
        with self.out.open("a", encoding="utf-8") as file:
            for way, scores in found.items():
                line = {"method": method, "seed": run.seed, "round": run.round, "way": way}
                print(json.dumps({**line, "sent": sent, "scores": scores}), file=file)


def several(run: Run) -> dict[str, list[float]]:
    """way -> score of every client, of models made of the newest global and the last own one."""
    task, federation = run.task, run.federation
    counts = [federation.train(i).class_counts(task.outputs) for i in range(run.info.clients)]
    common = frames.shares(torch.stack(counts).double().sum(0))
    newest = run.algorithm.global_model(task, run.server, {})
    trained_in_frames = run.algorithm.personal.frame == "training"
    found: dict[str, list[float]] = {}
    for i in range(run.info.clients):
        data = federation.test(i)
        view = task.view(federation.train(i))
        own = run.algorithm.personal_model(
            view,
            run.state(i),
            run.algorithm.public(run.server),
            federation.train(i),
            None,  # type: ignore[arg-type]
        )
        ways: dict[str, Tensor] = {}
        if trained_in_frames:
            frame = frames.own_frame(counts[i])
            ways |= _blends("framed", task.folded(newest, frame), task.folded(own, frame))
        else:
            corrected = task.folded(newest, frames.corrected(counts[i], common))
            ways |= _blends("plain", newest, own)
            ways |= _blends("served", corrected, own)
        if not run.touched(i):  # what it has of its own is the start that all had
            ways = {way: ways[way.split()[0] + " global"] for way in ways}
        for way, theta in ways.items():
            score = view.score(theta, data).score if len(data) else None
            found.setdefault(way, []).append(float("nan") if score is None else float(score))
    return found


def _blends(name: str, newest: Tensor, own: Tensor) -> dict[str, Tensor]:
    ways = {f"{name} global": newest, f"{name} own": own}
    return ways | {f"{name} blend {share}": torch.lerp(newest, own, share) for share in BLENDS}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("experiment", type=Path)
    arguments.add_argument("--at", required=True, help="rounds, with commas")
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--set", action="append", default=[])
    given = arguments.parse_args()
    setup = prepare(load(given.experiment, given.set), data_root(None))
    at = [int(word) for word in given.at.split(",")]
    done: set[tuple[str, int]] = set()
    if given.out.exists():
        lines: list[dict[str, Any]] = [json.loads(x) for x in given.out.read_text().splitlines()]
        done = {(x["method"], x["seed"]) for x in lines if x["round"] == max(at)}
        kept = [x for x in lines if (x["method"], x["seed"]) in done]
        given.out.write_text("".join(json.dumps(x) + "\n" for x in kept))
    with setup.backend() as backend:
        for seed in setup.experiment.seeds:
            for method in setup.methods:
                if (method, seed) not in done:
                    run_method(setup, backend, method, seed, [Scores(setup, at, given.out)])


if __name__ == "__main__":
    main()
